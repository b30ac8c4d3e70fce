"""The backend ``pipelined``: chunks of rows, whose collectives run on the communication stream meanwhile.

It takes every dtype that Paddle's products and collectives take. Shapes as in serial.py. Products and
collectives write into the rows of one result: joining chunks would take the processor's time from products.
"""

from __future__ import annotations

import paddle

from .flights import Flights
from .product import spans


def all_reduce(left, weight, transpose: bool, group, beside=None, chunks: int = 1):
    result = _empty(left.shape[0], left, weight, transpose)
    with Flights(group) as flights:
        for first, last in spans(left.shape[0], chunks):
            rows = result[first:last]
            paddle.matmul(left[first:last], weight, transpose_y=transpose, out=rows)
            flights.all_reduce(rows)
        found = beside() if beside else None
    return result, found


def reduce_scatter(left, weight, transpose: bool, group, beside=None, chunks: int = 1):
    """A chunk is the same rows of every rank's part."""
    rows, depth = left.shape
    own = rows // group.nranks
    result = _empty(own, left, weight, transpose)
    cut = spans(own, chunks)
    parts = left.reshape([group.nranks, own, depth])
    with Flights(group) as flights:
        for first, last in cut:
            chunk = left if len(cut) == 1 else parts[:, first:last].reshape([-1, depth])
            product = paddle.matmul(chunk, weight, transpose_y=transpose)
            flights.reduce_scatter(product, result[first:last])
        found = beside() if beside else None
    return result, found


def gather(left, weight, transpose: bool, group, keep: bool, chunks: int = 1):
    """This rank's rows are multiplied while the first chunk travels, the others' as they arrive."""
    rows, own = left.shape[0], group.rank
    result = _empty(group.nranks * rows, left, weight, transpose)
    gathered = paddle.empty([group.nranks * rows, left.shape[1]], left.dtype) if keep else None

    def finish(begin: int, arrived) -> None:
        """The rows from ``begin`` on of the whole are there."""
        end = begin + arrived.shape[0]
        paddle.matmul(arrived, weight, transpose_y=transpose, out=result[begin:end])
        if keep:
            paddle.assign(arrived, gathered[begin:end])

    with Flights(group) as flights:
        cut = spans(rows, chunks)
        coming = [flights.all_gather(left[first:last]) for first, last in cut]
        finish(own * rows, left)
        for flight, (first, last) in zip(coming, cut, strict=True):
            chunk, size = flight.wait(), last - first
            for rank in range(group.nranks):
                if rank != own:
                    finish(rank * rows + first, chunk[rank * size : (rank + 1) * size])
    return result, gathered


def _empty(rows: int, left, weight, transpose: bool) -> paddle.Tensor:
    return paddle.empty([rows, weight.shape[0 if transpose else 1]], left.dtype)
