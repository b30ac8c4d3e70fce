"""Shards of Megatron's optimizer: the largest piece of one weight that a rank updates.

DistributedOptimizer (core/optimizer/distrib_optimizer.py) cuts each bucket of a buffer into equal parts, one
for each data-parallel rank, wherever weights begin. A buffer has the weights in reverse order, the last layer
first (core/distributed/param_and_grad_buffer.py). With overlapped gradients the first stage's first chunk has
buckets of 40 million elements or more (distributed_data_parallel.py); other buffers are one bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

BUCKET = 40_000_000


def largest_piece(buffer: Sequence[int], degree: int, bucket: int | None, replica: int | None) -> int:
    """Elements of the largest piece of a weight in the shard of rank ``replica``, or of any rank for None.

    ``buffer``: the elements of each weight in the order of the model. ``bucket``: the elements at which a
    bucket is full, None for one bucket.
    """
    shards = range(degree) if replica is None else (replica % degree,)
    return max(
        (_piece(one_bucket, degree, shard) for one_bucket in _buckets(buffer, bucket) for shard in shards),
        default=0,
    )


def _buckets(buffer: Sequence[int], full: int | None) -> Iterator[list[int]]:
    sizes: list[int] = []
    for size in reversed(buffer):
        sizes.append(size)
        if full is not None and sum(sizes) >= full:
            yield sizes
            sizes = []
    if sizes:
        yield sizes


def _piece(bucket: Sequence[int], degree: int, shard: int) -> int:
    part = -(-sum(bucket) // degree)
    first, last = shard * part, (shard + 1) * part
    ends = list(accumulate(bucket))
    starts = [0, *ends[:-1]]
    return max(min(end, last) - max(start, first) for start, end in zip(starts, ends, strict=True))
