"""Times the settings of a product, on all ranks together."""

from __future__ import annotations

import time
from collections.abc import Sequence

import paddle
import paddle.distributed as dist

from . import backends
from .product import Product, Setting


@paddle.no_grad()
def seconds(product: Product, settings: Sequence[Setting], group, turns: int) -> list[float]:
    """Seconds of ``product`` with each of ``settings``: the minimum of several runs.

    Every rank of ``group`` must call it. The first run, a warm-up, does not count.
    """
    left = paddle.full([product.rows, product.depth], 0.5, product.dtype)
    sizes = [product.depth, product.columns]
    right = paddle.full(sizes[::-1] if product.transposed else sizes, 0.5, product.dtype)
    others = (product.transposed, group)
    factor = paddle.full([product.rows, product.columns], 0.5, product.dtype) if product.beside else None

    def beside():
        return paddle.matmul(factor, left, transpose_x=True)

    best = [float("inf")] * len(settings)
    for turn in range(turns + 1):
        for position, setting in enumerate(settings):
            dist.barrier(group)
            paddle.device.synchronize()
            began = time.perf_counter()
            kept = backends.run(
                product.kind, setting, left, right, *others, beside if product.beside else None
            )
            paddle.device.synchronize()
            if turn:
                best[position] = min(best[position], time.perf_counter() - began)
            del kept
    return best


def agreed(values: list[float], group) -> list[float]:
    """The first rank's ``values`` on every rank: times differ, and all ranks must choose the same."""
    shared = paddle.to_tensor(values, dtype="float32")
    dist.broadcast(shared, src=group.ranks[0], group=group)
    return [float(value) for value in shared.numpy()]
