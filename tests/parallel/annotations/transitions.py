"""Every transition between placements, in dygraph and in a static program. Run by tests/shared/ranks.py."""

from __future__ import annotations

import itertools
import traceback

import numpy as np
import paddle
import paddle.distributed as dist
import ranks
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec

import paddle_fused
import virtual_npu
from llm_npu import patches
from llm_npu.parallel.communication import collectives_of

assert paddle_fused.rms_norm  # importing an operator brings the patches that captured programs need
NAMES = ("R", "S0", "S1", "P")
DTYPES = ("float32", "float64", "bfloat16", "float16", "int32", "int64")
WALK = ["R", "S0", "S1", "S0", "P", "S1", "P", "S0", "R", "S1", "R", "P", "R"]  # through every transition
SHAPES = {"even": [8, 6], "uneven": [5, 7]}


def placement(name: str):
    if name[0] == "S":
        return dist.Shard(int(name[1:]))
    return dist.Replicate() if name == "R" else dist.Partial()


def part(whole: np.ndarray, name: str, rank: int, processes: int) -> np.ndarray:
    """What process ``rank`` holds; the terms of a sum are 1 and whole - 1 (and zeros)."""
    if name[0] == "S":
        return split(whole, int(name[1:]), rank, processes)
    if name == "R":
        return whole
    return {0: whole - 1, 1: np.ones_like(whole)}.get(rank, np.zeros_like(whole))


def split(whole: np.ndarray, dim: int, rank: int, processes: int) -> np.ndarray:
    return np.array_split(whole, processes, axis=dim)[rank]


def tensor(array: np.ndarray, dtype: str) -> paddle.Tensor:
    return paddle.to_tensor(array).astype(dtype)


def values(tensor: paddle.Tensor) -> np.ndarray:
    return tensor.astype("float64").numpy()


def dygraph(mesh, start: str, end: str, shape: list[int], dtype: str) -> dict:
    """Whether the local value is the wanted one, and what was sent."""
    processes, rank = dist.get_world_size(), dist.get_rank()
    whole = np.arange(np.prod(shape)).reshape(shape).astype("float64")
    local = tensor(part(whole, start, rank, processes), dtype)
    moved = dist.auto_parallel.api.dtensor_from_local(local, mesh, [placement(start)])
    if list(moved.shape) != shape:  # uneven parts: the global shape cannot be read off one of them
        moved = dist.reshard(
            dist.shard_tensor(tensor(whole, dtype), mesh, [dist.Replicate()]), mesh, [placement(start)]
        )
    virtual_npu.reset_transfers()
    reshared = dist.reshard(moved, mesh, [placement(end)])
    sent = [transfer.kind for transfer in virtual_npu.transfers() for _ in range(transfer.calls)]
    local = reshared._local_value()
    if end == "P":
        total = local.clone()
        dist.all_reduce(total)
        right = np.array_equal(values(total), whole)
    else:
        right = np.array_equal(values(local), part(whole, end, rank, processes))
    return {
        "right": bool(right),
        "sent": sent,
        "place": str(local.place),
        "numpy": bool(np.array_equal(values(reshared), whole)),
    }


class Chain(paddle.nn.Layer):
    """The input, whole at first, through ``names``."""

    def __init__(self, mesh, names):
        super().__init__()
        self.mesh, self.names = mesh, names
        parameter = self.create_parameter([1], default_initializer=paddle.nn.initializer.Constant(1.0))
        self.one = dist.shard_tensor(parameter, mesh, [dist.Replicate()])  # a program must have one to train

    def forward(self, x):
        for name in self.names:
            x = dist.reshard(x, self.mesh, [placement(name)])
        return x * self.one


def static(mesh, names: list[str], shape: list[int]) -> dict:
    """``names`` start and end with R, so the values at the end are those of the beginning."""
    whole = np.arange(np.prod(shape)).reshape(shape).astype("float32")
    weights = (
        np.random.default_rng(0).integers(0, 100, shape).astype("float32")
    )  # their sum tells values apart
    x, static_weights = (
        dist.shard_tensor(paddle.to_tensor(array), mesh, [dist.Replicate()]) for array in (whole, weights)
    )
    specs = [
        [DistributedInputSpec.from_dtensor(x, "x")],
        [DistributedInputSpec.from_dtensor(static_weights, "weights")],
    ]
    chain = Chain(mesh, names)
    optimizer = dist.shard_optimizer(paddle.optimizer.SGD(0.0, parameters=chain.parameters()))
    program = dist.to_static(chain, None, lambda y, wanted: (y * wanted).sum(), optimizer, input_spec=specs)
    program.train()
    total = float(program(x, static_weights))
    return {
        "right": total == float((whole * weights).sum()),
        "sent": [collective.kind for collective in collectives_of(program)],
    }


def attempt(function, *arguments) -> dict:
    try:
        return function(*arguments)
    except Exception:
        return {"failure": traceback.format_exc()}


def main() -> None:
    patches.apply()
    dist.init_parallel_env()
    mesh = dist.ProcessMesh(list(range(dist.get_world_size())), dim_names=["x"])
    results = {}
    for start, end in itertools.product(NAMES, repeat=2):
        for size, shape in SHAPES.items():
            for dtype in DTYPES if size == "even" else DTYPES[:1]:
                results[f"dygraph {start} {end} {size} {dtype}"] = attempt(
                    dygraph, mesh, start, end, shape, dtype
                )
    results["scalar"] = attempt(scalar, mesh)
    results["static"] = attempt(static, mesh, WALK, SHAPES["even"])
    results["walk"] = WALK
    ranks.write(results)


def scalar(mesh) -> dict:
    """float() and item() of sums that are not reduced yet."""
    terms = dist.auto_parallel.api.dtensor_from_local(paddle.to_tensor(1.5), mesh, [dist.Partial()])
    whole = 1.5 * dist.get_world_size()
    return {"right": float(terms) == whole and terms.item() == whole and float(terms.numpy()) == whole}


main()
