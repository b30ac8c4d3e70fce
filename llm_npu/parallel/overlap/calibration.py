"""Measures the inputs of the planner's model: products of several row counts, and two collectives.

All ranks of the group measure at the same time, as they will compute. Their results differ slightly, so all
ranks use the predictions of the first one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import paddle
import paddle.distributed as dist

from .flights import Flights
from .pipeline_model import Rates
from .product import ALL_REDUCE, GATHER, TILE, Product, spans

CHUNKS = (2, 4, 8, 16)  # row counts at which products are measured
MEASURED = 2e9  # largest measured product, in operations (some milliseconds); larger ones are extrapolated
TURNS = 3
SMALL, LARGE = 1 << 10, 1 << 22  # bytes that a rank sends in the two collectives


@paddle.no_grad()
def measure(product: Product, group) -> Rates:
    """The rates of ``product``. Every rank of ``group`` must call it."""
    multiplied = _products(product)
    small, large = (_collective(product, group, sent) for sent in (SMALL, LARGE))
    per_byte = [max(0.0, b - a) / (large[0] - small[0]) for a, b in zip(small[1:], large[1:], strict=True)]
    return Rates(
        product=multiplied,
        latency=max(0.0, small[1] - small[0] * per_byte[0]),
        seconds_per_byte=per_byte[0],
        work=max(0.0, small[2] - small[0] * per_byte[1]),
        work_per_byte=per_byte[1],
        copy_per_byte=_copy(product.dtype),
        transpose=_transpose(product) if product.transposed else 0.0,
    )


def agreed(values: list[float], group) -> list[float]:
    """Broadcasts the first rank's ``values``."""
    shared = paddle.to_tensor(values, dtype="float32")
    dist.broadcast(shared, src=group.ranks[0], group=group)
    return [float(value) for value in shared.numpy()]


def _products(product: Product) -> tuple[tuple[int, float], ...]:
    """(rows, seconds) of products for the chunks of every cut; smaller ones if they would take long."""
    rows = {product.rows_multiplied, product.rows}
    for chunks in CHUNKS:
        first, last = spans(product.parts, chunks)[-1]
        rows.add((last - first) * product.rows // product.parts)
    per_row = 2 * product.depth * product.columns
    most = max(int(MEASURED / per_row) // TILE * TILE, min(rows))
    sizes = sorted({min(size, most) for size in rows})
    left = paddle.full([sizes[-1], product.depth], 0.5, product.dtype)
    right = paddle.full([product.depth, product.columns], 0.5, product.dtype)
    seconds = [_seconds(lambda part: paddle.matmul(part, right), left[:size]) for size in sizes]
    # More rows never take less time.
    return tuple(zip(sizes, itertools.accumulate(seconds, max), strict=True))


def _collective(product: Product, group, sent: int) -> tuple[int, float, float]:
    """(bytes that a rank sends, seconds, processor seconds) of a collective of the product's kind."""
    ranks = group.nranks
    elements = paddle.full([1], 0.5, product.dtype)
    size = elements.element_size()
    if product.kind == GATHER:
        count = max(1, sent // (size * (ranks - 1)))
        travels, shape = (ranks - 1) * count * size, [count, 1]
    else:
        share = max(1, sent // (size * (ranks - 1) * (2 if product.kind == ALL_REDUCE else 1)))
        travels = (ranks - 1) * share * size * (2 if product.kind == ALL_REDUCE else 1)
        shape = [share * ranks, 1]
    tensor = paddle.zeros(shape, product.dtype)

    def communicate():
        with Flights(group) as flights:
            start = {ALL_REDUCE: flights.all_reduce, GATHER: flights.all_gather}
            start.get(product.kind, flights.reduce_scatter)(tensor)

    times, works = [], []
    for turn in range(TURNS + 1):
        dist.barrier(group)
        paddle.device.synchronize()
        worked, began = time.process_time(), time.perf_counter()
        communicate()
        paddle.device.synchronize()
        if turn:
            times.append(time.perf_counter() - began)
            works.append(time.process_time() - worked)
    return travels, min(times), min(works)


def _copy(dtype: str) -> float:
    """Seconds to concatenate two tensors, by bytes."""
    half = paddle.zeros([LARGE // 8], dtype)
    joined = 2 * half.shape[0] * half.element_size()
    return _seconds(lambda part: paddle.concat([part, part]), half) / joined


def _transpose(product: Product) -> float:
    weight = paddle.full([product.columns, product.depth], 0.5, product.dtype)
    return _seconds(lambda matrix: matrix.t().contiguous(), weight)


def _seconds(run: Callable, argument) -> float:
    """The minimum of several runs; the first one, a warm-up, does not count."""
    times = []
    for turn in range(TURNS + 1):
        paddle.device.synchronize()
        began = time.perf_counter()
        run(argument)
        paddle.device.synchronize()
        if turn:
            times.append(time.perf_counter() - began)
    return min(times)
