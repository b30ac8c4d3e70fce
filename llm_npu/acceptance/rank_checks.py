"""Checks that every rank runs: collectives, matmuls fused with them, the overlap planner, ring attention."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import paddle
import paddle.distributed as dist

from llm_npu.core import ranks
from llm_npu.parallel import overlap as overlapped
from llm_npu.parallel.overlap import mc2 as fused
from llm_npu.parallel.overlap.product import ALL_REDUCE, KINDS, Product
from paddle_fused import flash_attention, masks, use_backend
from paddle_fused.context_parallel import kernels, zigzag
from paddle_fused.context_parallel.ring import ring_attention
from paddle_fused.parity import ROUNDING

from .journal import Journal, number

DTYPES = ("float32", "bfloat16", "float16", "int32", "int64")
SIZES = (1, 1000, 1 << 18)  # elements per rank
TIMED, TURNS = 16 << 20, 5  # bytes of the timed all_reduce
ROWS, DEPTH, COLUMNS = 256, 512, 512
TOKENS, HEADS, KEY_HEADS, HEAD_DIM = 256, 8, 2, 64  # tokens per rank


def collectives(group, journal: Journal) -> None:
    """Check collectives with small integers, whose sums are exact in every dtype and order."""
    for dtype in DTYPES:
        for size in SIZES:
            for kind, (start, expect) in KINDS_OF_COLLECTIVES.items():
                name = f"{kind} {dtype}, {size} numbers"
                with journal.case(name):
                    arrays = [_numbers(rank, size * group.nranks) for rank in range(group.nranks)]
                    mine = paddle.to_tensor(arrays[group.rank].astype("float32")).astype(dtype)
                    actual = start(mine, group).astype("float32").numpy()
                    expected = expect(arrays, group.rank)
                    wrong = np.flatnonzero(actual != expected) if actual.shape == expected.shape else [0]
                    if len(wrong) == 0:
                        journal.same(name, "exact")
                        continue
                    first = [values.ravel()[wrong[:4]] for values in (expected, actual)]
                    journal.differs(name, f"{len(wrong)} of {expected.size} wrong", *first)
    with journal.case("speed of all_reduce"):
        tensor = paddle.zeros([TIMED // 4])
        seconds = []
        for _ in range(TURNS + 1):
            dist.barrier(group)
            paddle.device.synchronize()
            began = time.perf_counter()
            dist.all_reduce(tensor, group=group)
            paddle.device.synchronize()
            seconds.append(time.perf_counter() - began)
        sent = 2 * (group.nranks - 1) / group.nranks * TIMED
        if group.rank == 0:
            journal.note(
                "speed of all_reduce", f"{sent / min(seconds[1:]) / 1e9:.3g} GB/s over each card's links"
            )


def _all_reduce(operation) -> Callable:
    def start(tensor, group):
        dist.all_reduce(tensor, operation, group=group)
        return tensor

    return start


def _all_gather(tensor, group):
    parts: list = []
    dist.all_gather(parts, tensor, group=group)
    return paddle.concat(parts)


def _reduce_scatter(tensor, group):
    part = paddle.empty([tensor.shape[0] // group.nranks], tensor.dtype)
    dist.reduce_scatter(part, list(paddle.split(tensor, group.nranks)), group=group)
    return part


def _broadcast(tensor, group):
    dist.broadcast(tensor, group.ranks[-1], group=group)
    return tensor


def _all_to_all(tensor, group):
    parts: list = []
    dist.alltoall(parts, list(paddle.split(tensor, group.nranks)), group=group)
    return paddle.concat(parts)


def _send_to_next(tensor, group):
    """Ring: every rank sends to the next rank and receives from the previous one."""
    received = paddle.empty_like(tensor)
    after, before = (group.ranks[(group.rank + step) % group.nranks] for step in (1, -1))
    sends = dist.P2POp(dist.isend, tensor, after, group)
    receives = dist.P2POp(dist.irecv, received, before, group)
    for task in dist.batch_isend_irecv([sends, receives]):
        task.wait()
    return received


def _part(array: np.ndarray, rank: int, ranks: int) -> np.ndarray:
    return np.split(array, ranks)[rank]


KINDS_OF_COLLECTIVES = {
    "all_reduce sum": (_all_reduce(dist.ReduceOp.SUM), lambda arrays, rank: sum(arrays)),
    "all_reduce max": (_all_reduce(dist.ReduceOp.MAX), lambda arrays, rank: np.max(arrays, 0)),
    "all_gather": (_all_gather, lambda arrays, rank: np.concatenate(arrays)),
    "reduce_scatter": (_reduce_scatter, lambda arrays, rank: _part(sum(arrays), rank, len(arrays))),
    "broadcast": (_broadcast, lambda arrays, rank: arrays[-1]),
    "all_to_all": (
        _all_to_all,
        lambda arrays, rank: np.concatenate([_part(array, rank, len(arrays)) for array in arrays]),
    ),
    "send and receive": (_send_to_next, lambda arrays, rank: arrays[rank - 1]),
}


def _numbers(rank: int, size: int) -> np.ndarray:
    return ((np.arange(size) * 7 + rank * 13) % 17 - 8).astype(np.float32)


def mc2(group, journal: Journal) -> None:
    """Check the plugin's fused operators. The error limit is twice that of separate matmul and collective."""
    for dtype in ("bfloat16", "float16"):
        for kind in KINDS:
            name = f"{fused.OPERATORS[kind]} {dtype}"
            with journal.case(name):
                product = Product(kind, ROWS, DEPTH, COLUMNS, dtype, group.nranks)
                if refused := fused.reason_of_any(product, group):
                    if kind == ALL_REDUCE and fused.is_910c():
                        journal.note(name, refused)
                        continue
                    journal.differs(name, f"not supported here: {refused}", "supported", "refused")
                    continue
                _product(name, PRODUCTS[kind], dtype, group, journal)


def _product(name: str, operator: str, dtype: str, group, journal: Journal) -> None:
    left, right = (
        [_rounded(seed + 10 * rank, shape, dtype) for rank in range(group.nranks)]
        for seed, shape in ((1, (ROWS, DEPTH)), (2, (DEPTH, COLUMNS)))
    )
    wide = [
        [tensor.astype("float32").numpy().astype(np.float64) for tensor in tensors]
        for tensors in (left, right)
    ]
    if operator == "all_gather_matmul":
        truth = np.concatenate(wide[0]) @ wide[1][group.rank]
    else:
        truth = sum(a @ b for a, b in zip(*wide, strict=True))
        truth = _part(truth, group.rank, group.nranks) if operator == "matmul_reduce_scatter" else truth
    errors = {}
    for method in ("mc2", "serial"):
        product = getattr(overlapped, operator)(left[group.rank], right[group.rank], group, method)
        errors[method] = np.abs(_float64(product) - truth).max()
    error, noise_floor = errors["mc2"], errors["serial"]
    allowed = 2 * noise_floor + ROUNDING[dtype] * np.abs(truth).max()
    limit = f"at most {number(allowed)}"
    journal.judge(
        name, bool(error <= allowed), f"largest error {number(error)}, {limit}", limit, number(error)
    )


PRODUCTS = dict(zip(KINDS, ("matmul_all_reduce", "all_gather_matmul", "matmul_reduce_scatter"), strict=True))


def _float64(tensor) -> np.ndarray:
    return tensor.astype("float32").numpy().astype(np.float64)


def _rounded(seed: int, shape: tuple[int, ...], dtype: str):
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape).astype("float32")).astype(
        dtype
    )


def overlap(group, journal: Journal) -> None:
    """Plans for shapes of a small and a large layer: all ranks must choose the same plan."""
    planner = overlapped.Planner()
    for kind in KINDS:
        for rows, width, concurrent in ((256, 256, False), (1024, 1024, False), (1024, 1024, True)):
            product = Product(kind, rows, width, width, "bfloat16", group.nranks, concurrent)
            name = f"plan for {product}"
            with journal.case(name):
                plan = planner.plan(product, group)
                chosen = ranks.gathered(str(plan.setting), group)
                alike = len(set(chosen)) == 1
                journal.judge(name, alike, chosen[0] if alike else "ranks differ", chosen[0], chosen)
                if group.rank == 0:
                    journal.note(f"{name}, times", str(plan))


def ring(group, journal: Journal) -> None:
    """Ring attention, and the undocumented behavior of the plugin's operator that it relies on.

    The error against plain Paddle in float32 may be twice that of the whole sequence on one card.
    """
    with journal.case("statistics of documents"):
        order = kernels.varlen_order() or "unknown: documents are computed one by one"
        journal.note("statistics of documents", f"their order in memory is {order}")
    length = TOKENS * group.nranks
    shapes = [(1, length, heads, HEAD_DIM) for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)]
    *whole, gradient = (_rounded(seed, shape, "bfloat16") for seed, shape in enumerate(shapes))
    for method in kernels.GRADIENTS:
        _gradient_kernel(method, [*whole, gradient], journal)
    other = dist.new_group(group.ranks)
    for direction in (group, other):
        dist.barrier(direction)
    third = length // 3
    for mask in (masks.causal(), masks.documents([third, 5, length - third - 5])):
        name = f"ring attention, {mask!r}"
        with journal.case(name):
            truth = _with_gradients(flash_attention, [x.astype("float32") for x in (*whole, gradient)], mask)
            single = _with_gradients(flash_attention, [*whole, gradient], mask, "ascend")
            own = [zigzag.split(x, group.rank, group.nranks) for x in (*whole, gradient)]
            attention = partial(ring_attention, group=group, backward_group=other)
            results = _with_gradients(attention, own, mask, "ascend")
            ratios = []
            for result, alone, wide in zip(results, single, truth, strict=True):
                part = zigzag.split(wide, group.rank, group.nranks)
                allowed = 2 * np.abs(alone - wide).max() + 2 * ROUNDING["bfloat16"] * np.abs(wide).max()
                ratios.append(np.abs(result - part).max() / allowed)
            worst = number(max(ratios))
            limit = "at most 1 of the allowed error"
            journal.judge(name, bool(max(ratios) <= 1), f"{worst} of the allowed error", limit, worst)


def _gradient_kernel(method: str, tensors: list, journal: Journal) -> None:
    """The gradient kernel, called with the statistics of the operator, gives the same bits."""
    name = f"gradient kernel of flash_attention_npu, {method}"
    with journal.case(name):
        if method == kernels.REGISTERED and kernels.gradient_signature() is None:
            journal.note(name, "the host library is not built")
            return
        expected = _with_gradients(flash_attention, tensors, masks.causal(), "ascend")[1:]
        *inputs, gradient = tensors
        kernel = kernels.Plugin(HEAD_DIM**-0.5, HEAD_DIM, method)
        with paddle.no_grad():
            results = kernel.forward(*inputs, True, ())
            actual = kernel.backward(*inputs, *results, gradient, True, ())
        alike = all(np.array_equal(_float64(x), y) for x, y in zip(actual, expected, strict=True))
        journal.judge(name, alike, "the bits of backward" if alike else "other bits", "the same bits")


def _with_gradients(attention, tensors: list, mask, backend: str = "composed") -> list[np.ndarray]:
    """Output and gradients of query, key and value."""
    *inputs, gradient = (x.detach() for x in tensors)
    for tensor in inputs:
        tensor.stop_gradient = False
    with use_backend(backend, strict=True):
        out = attention(*inputs, mask)
        return [_float64(x) for x in (out, *paddle.grad(out, inputs, gradient))]
