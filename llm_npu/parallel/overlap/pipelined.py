"""The backend ``pipelined``: chunks of rows, with their collectives on the communication stream.

Supports every dtype of Paddle's matmuls and collectives. Shapes as in serial.py. Matmuls and collectives
write into rows of a single result, because concatenating chunks would take as long as a matmul.
"""

from __future__ import annotations

import paddle

from paddle_fused.paddle_release import matmul_into

from .pending_collectives import PendingCollectives
from .product import in_pieces, spans


def all_reduce(left, weight, transpose: bool, group, concurrent=None, chunks: int = 1):
    result = _empty(left.shape[0], left, weight, transpose)
    with PendingCollectives(group) as pending:
        for first, last in spans(left.shape[0], chunks):
            rows = result[first:last]
            matmul_into(rows, left[first:last], weight, transpose)
            pending.all_reduce(rows)
        other = concurrent() if concurrent else None
    return result, other


def reduce_scatter(left, weight, transpose: bool, group, concurrent=None, chunks: int = 1):
    """Each chunk has the same rows of every rank's part."""
    own = left.shape[0] // group.nranks
    result = _empty(own, left, weight, transpose)
    with PendingCollectives(group) as pending:
        for first, last in spans(own, chunks):
            product = _of_every_part(left, weight, transpose, group.nranks, first, last)
            pending.reduce_scatter(product, result[first:last])
        other = concurrent() if concurrent else None
    return result, other


def gather(left, weight, transpose: bool, group, keep: bool, chunks: int = 1):
    """Multiply this rank's rows during the first chunk's gather, other ranks' rows as they arrive."""
    rows, own = left.shape[0], group.rank
    result = _empty(group.nranks * rows, left, weight, transpose)
    gathered = paddle.empty([group.nranks * rows, left.shape[1]], left.dtype) if keep else None

    def finish(begin: int, arrived) -> None:
        """Process the rows of the gathered tensor from ``begin`` on, which are available."""
        end = begin + arrived.shape[0]
        matmul_into(result[begin:end], arrived, weight, transpose)
        if keep:
            paddle.assign(arrived, gathered[begin:end])

    with PendingCollectives(group) as pending:
        cut = spans(rows, chunks)
        coming = [pending.all_gather(left[first:last]) for first, last in cut]
        finish(own * rows, left)
        for collective, (first, last) in zip(coming, cut, strict=True):
            chunk, size = collective.wait(), last - first
            for rank in range(group.nranks):
                if rank != own:
                    finish(rank * rows + first, chunk[rank * size : (rank + 1) * size])
    return result, gathered


def _of_every_part(left, weight, transpose: bool, ranks: int, first: int, last: int) -> paddle.Tensor:
    """The product of the rows [first, last) of each of ``ranks`` equal parts of ``left``."""
    rows, depth = left.shape
    own, size = rows // ranks, last - first
    if not in_pieces(size, own):
        chunk = left if size == own else left.reshape([ranks, own, depth])[:, first:last].reshape([-1, depth])
        return paddle.matmul(chunk, weight, transpose_y=transpose)
    product = _empty(ranks * size, left, weight, transpose)
    for rank in range(ranks):
        of_rank, to = left[rank * own + first : rank * own + last], product[rank * size : (rank + 1) * size]
        matmul_into(to, of_rank, weight, transpose)
    return product


def _empty(rows: int, left, weight, transpose: bool) -> paddle.Tensor:
    return paddle.empty([rows, weight.shape[0 if transpose else 1]], left.dtype)
