"""The backend ``pipelined``: chunks of rows, whose collectives run on the communication stream meanwhile.

It takes every dtype that Paddle's products and collectives take. Shapes as in serial.py.
"""

from __future__ import annotations

import paddle

from .flights import Flights
from .product import spans


def all_reduce(left, weight, transpose: bool, group, beside=None, chunks: int = 1):
    with Flights(group) as flights:
        sums = [
            flights.all_reduce(paddle.matmul(left[first:last], weight, transpose_y=transpose))
            for first, last in spans(left.shape[0], chunks)
        ]
        found = beside() if beside else None
        return _joined([each.wait() for each in sums]), found


def reduce_scatter(left, weight, transpose: bool, group, beside=None, chunks: int = 1):
    """A chunk is the same rows of every rank's part."""
    rows, depth = left.shape
    cut = spans(rows // group.nranks, chunks)
    parts = left.reshape([group.nranks, rows // group.nranks, depth])
    with Flights(group) as flights:
        sums = []
        for first, last in cut:
            chunk = left if len(cut) == 1 else parts[:, first:last].reshape([-1, depth])
            sums.append(flights.reduce_scatter(paddle.matmul(chunk, weight, transpose_y=transpose)))
        found = beside() if beside else None
        return _joined([each.wait() for each in sums]), found


def gather(left, weight, transpose: bool, group, keep: bool, chunks: int = 1):
    """This rank's rows are multiplied while the first chunk travels, the others' as they arrive."""
    ranks, own = group.nranks, group.rank
    others = [rank for rank in range(ranks) if rank != own]
    arrived, products = {rank: [] for rank in others}, {rank: [] for rank in others}
    with Flights(group) as flights:
        cut = spans(left.shape[0], chunks)
        coming = [flights.all_gather(left[first:last]) for first, last in cut]
        products[own], arrived[own] = [paddle.matmul(left, weight, transpose_y=transpose)], [left]
        for flight, (first, last) in zip(coming, cut, strict=True):
            chunk = paddle.split(flight.wait(), ranks) if last > first else []
            for rank in others if chunk else ():
                arrived[rank].append(chunk[rank])
                products[rank].append(paddle.matmul(chunk[rank], weight, transpose_y=transpose))
        result = _joined([piece for rank in range(ranks) for piece in products[rank]])
        return result, _joined([piece for rank in range(ranks) for piece in arrived[rank]]) if keep else None


def _joined(pieces: list[paddle.Tensor]) -> paddle.Tensor:
    return pieces[0] if len(pieces) == 1 else paddle.concat(pieces)
