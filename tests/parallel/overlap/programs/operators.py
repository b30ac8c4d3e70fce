"""The operators against float64 and against the product and the collective one after the other.

Every rank knows the inputs of all ranks, from which the truth is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import paddle

from llm_npu.parallel import overlap
from paddle_fused.parity import ROUNDING

Arrays = list[np.ndarray]  # one for each rank


@dataclass(frozen=True)
class Operator:
    """``truth(x, weight, gradient of the result, rank)``, the first three of every rank: the result and the
    gradients of x and weight on ``rank``.

    ``gathers``: the result has all ranks' rows; ``scatters``: one rank's part of the rows.
    ``same_x``, ``same_gradient``: what is the same on every rank.
    """

    name: str
    truth: Callable[[Arrays, Arrays, Arrays, int], tuple]
    gathers: bool = False
    scatters: bool = False
    same_x: bool = False
    same_gradient: bool = False


def all_reduce(x, weight, gradient, rank):
    result = sum(a @ b for a, b in zip(x, weight, strict=True))
    return result, gradient[rank] @ weight[rank].T, x[rank].T @ gradient[rank]


def replicated(x, weight, gradient, rank):
    summed = sum(a @ b.T for a, b in zip(gradient, weight, strict=True))
    return x[rank] @ weight[rank], summed, x[rank].T @ gradient[rank]


def gathered(x, weight, gradient, rank):
    everything = np.concatenate(x)
    summed = sum(a @ b.T for a, b in zip(gradient, weight, strict=True))
    return everything @ weight[rank], part(summed, rank, len(x)), everything.T @ gradient[rank]


def scattered(x, weight, gradient, rank):
    result = sum(a @ b for a, b in zip(x, weight, strict=True))
    everything = np.concatenate(gradient)
    return part(result, rank, len(x)), everything @ weight[rank].T, x[rank].T @ everything


def part(array, rank, ranks):
    return np.split(array, ranks)[rank]


OPERATORS = (
    Operator("matmul_all_reduce", all_reduce, same_gradient=True),
    Operator("replicated_matmul", replicated, same_x=True),
    Operator("all_gather_matmul", gathered, gathers=True),
    Operator("matmul_reduce_scatter", scattered, scatters=True),
)
SIZES = {
    "odd": (37, 300, 264),
    "few rows": (1, 256, 257),
    "many": (320, 300, 512),
    "no rows": (0, 256, 256),
    "long": (2060, 256, 257),  # of four chunks to be scattered three are multiplied where they lie
}
DTYPES = ("float32", "bfloat16", "float16")
BACKENDS = ("pipelined:1", "pipelined:2", "pipelined:4", "pipelined:7", "mc2", "auto")
VARIANTS = ("trained", "frozen", "frozen input", "gathered again")


def names() -> list[str]:
    """Of all checks: operator, sizes, dtype, backend, variant."""
    names_of = []
    for operator in OPERATORS:
        for sizes in SIZES:
            for dtype in DTYPES if sizes != "long" else DTYPES[:1]:
                backends = [name for name in BACKENDS if (name, dtype) != ("mc2", "float32")]
                if sizes != "odd":
                    backends = [name for name in backends if name in ("pipelined:4", "mc2")]
                for backend in backends:
                    for variant in VARIANTS if sizes == "odd" and dtype != "float16" else VARIANTS[:1]:
                        if variant != "gathered again" or operator.gathers:
                            names_of.append("; ".join((operator.name, sizes, dtype, backend, variant)))
    return names_of


def examine(group) -> dict[str, dict]:
    """What each check found; ``equal``: which results and gradients are serial's, bit for bit."""
    return {name: check(name, group) for name in names()}


def check(name: str, group) -> dict:
    operator_name, sizes, dtype, backend, variant = name.split("; ")
    operator = next(candidate for candidate in OPERATORS if candidate.name == operator_name)
    arrays = inputs(operator, SIZES[sizes], dtype, group.nranks)
    truth = dict(zip(("result", "x", "weight"), operator.truth(*arrays, group.rank), strict=True))
    mine = [array[group.rank] for array in arrays]
    overlapped = compute(operator, mine, dtype, group, backend, variant)
    serial = compute(operator, mine, dtype, group, "serial", variant)
    assert overlapped.keys() == serial.keys()
    assert ("weight" in overlapped) == (variant != "frozen")
    assert ("x" in overlapped) == (variant != "frozen input")
    compared = {key: compare(overlapped[key], serial[key], truth[key], dtype) for key in overlapped}
    return {
        "equal": [key for key, comparison in compared.items() if comparison["equal"]],
        "compared": compared,
    }


def compare(actual, serial, truth, dtype) -> dict:
    assert tuple(actual.shape) == truth.shape, (actual.shape, truth.shape)
    errors = [float(np.abs(values(tensor) - truth).max(initial=0.0)) for tensor in (actual, serial)]
    return {
        "equal": actual.numpy().tobytes() == serial.numpy().tobytes(),
        "error": errors[0],
        "serial_error": errors[1],
        "rounding": ROUNDING[dtype] * float(np.abs(truth).max(initial=0.0)),
    }


def inputs(operator: Operator, sizes, dtype: str, ranks: int) -> tuple[Arrays, Arrays, Arrays]:
    """x, weight and the gradient of the result on every rank, in float64, rounded to ``dtype``."""
    rows, depth, columns = sizes
    x_rows = rows * ranks if operator.scatters else rows
    rows_of_result = rows * ranks if operator.gathers else rows
    random = np.random.default_rng(sum(map(ord, operator.name)) + rows)

    def random_array(*shape, same=False):
        arrays = [random.standard_normal(shape).astype("float32") for _ in range(ranks)]
        arrays = [arrays[0]] * ranks if same else arrays
        return [values(paddle.to_tensor(array).astype(dtype)) for array in arrays]

    return (
        random_array(x_rows, depth, same=operator.same_x),
        random_array(depth, columns),
        random_array(rows_of_result, columns, same=operator.same_gradient),
    )


def compute(operator: Operator, arrays, dtype: str, group, backend: str, variant: str) -> dict:
    """The result and the gradients by name."""
    x, weight, gradient = (paddle.to_tensor(array.astype("float32")).astype(dtype) for array in arrays)
    x.stop_gradient, weight.stop_gradient = variant == "frozen input", variant == "frozen"
    extra = {"recompute_gather": True} if variant == "gathered again" else {}
    result = getattr(overlap, operator.name)(x, weight, group, backend, **extra)
    result.backward(gradient)
    tensors_of = {"result": result.detach(), "x": x.grad, "weight": weight.grad}
    return {key: tensor for key, tensor in tensors_of.items() if tensor is not None}


def values(tensor) -> np.ndarray:
    return tensor.astype("float32").numpy().astype(np.float64)


def three_dimensions(group) -> dict:
    """[S, B, H] in, and the same numbers as with [S * B, H]."""
    results = {}
    for operator in OPERATORS:
        rows = 6 * group.nranks
        x = paddle.arange(rows * 3 * 8, dtype="float32").reshape([rows, 3, 8]) / 100 + group.rank
        weight = paddle.ones([8, 5]) * (1 + group.rank)
        flat, deep = (
            getattr(overlap, operator.name)(tensor, weight, group, "pipelined:2")
            for tensor in (x.reshape([-1, 8]), x)
        )
        results[operator.name] = [deep.ndim, bool((deep.reshape([-1, 5]) == flat).all())]
    return results


def mixed_precision(group) -> str:
    """The dtype of the result of float32 tensors under auto_cast."""
    x, weight = paddle.ones([4, 8]), paddle.ones([8, 5])
    with paddle.amp.auto_cast(level="O1", dtype="bfloat16"):
        return str(overlap.matmul_all_reduce(x, weight, group, "pipelined:2").dtype)


def kept_outputs(group) -> bool:
    """Collectives whose outputs nobody refers to meanwhile: their memory must not go to others."""
    from llm_npu.parallel.overlap.pending_collectives import PendingCollectives

    with PendingCollectives(group) as pending:
        pieces = []
        for i in range(20):
            pieces.append(pending.all_gather(paddle.full([50_000], float(i + group.rank))))
            paddle.full([50_000 * group.nranks], -1.0)  # takes the memory of what was given back
        expected = np.arange(group.nranks)
        return all(
            (piece.wait().numpy().reshape(group.nranks, -1) == (expected + i)[:, None]).all()
            for i, piece in enumerate(pieces)
        )
