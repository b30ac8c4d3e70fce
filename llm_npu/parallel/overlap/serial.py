"""The backend ``serial``: the matmul, then the collective; the reference for the other backends.

Shapes: left [rows, depth]; weight [depth, columns], or [columns, depth] with ``transpose``.
"""

from __future__ import annotations

import paddle
import paddle.distributed as dist


def all_reduce(left, weight, transpose: bool, group, concurrent=None, chunks: int = 1):
    """(sum over the ranks of left weight, concurrent())"""
    result = paddle.matmul(left, weight, transpose_y=transpose)
    dist.stream.all_reduce(result, group=group, sync_op=True, use_calc_stream=True)
    return result, concurrent() if concurrent else None


def reduce_scatter(left, weight, transpose: bool, group, concurrent=None, chunks: int = 1):
    """(this rank's rows of the sum over the ranks of left weight, concurrent())"""
    product = paddle.matmul(left, weight, transpose_y=transpose)
    result = paddle.empty([product.shape[0] // group.nranks, product.shape[1]], product.dtype)
    dist.stream.reduce_scatter(result, product, group=group, sync_op=True, use_calc_stream=True)
    return result, concurrent() if concurrent else None


def gather(left, weight, transpose: bool, group, keep: bool, chunks: int = 1):
    """(gathered weight, gathered or None), with gathered = left of every rank, in rank order"""
    gathered = paddle.empty([left.shape[0] * group.nranks, left.shape[1]], left.dtype)
    dist.stream.all_gather(gathered, left, group=group, sync_op=True, use_calc_stream=True)
    return paddle.matmul(gathered, weight, transpose_y=transpose), gathered if keep else None
