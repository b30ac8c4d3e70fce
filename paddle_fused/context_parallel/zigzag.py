"""The zigzag distribution of a sequence over the ranks of context parallelism.

A sequence of S tokens is cut into 2n chunks of equal length. Rank r of n holds the chunks r and 2n - 1 - r,
in this order, so that all ranks have the same work under a causal mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import paddle


def chunks_of(rank: int, ranks: int) -> tuple[int, int]:
    """The indices of the two chunks that a rank holds, out of ``2 * ranks``."""
    return rank, 2 * ranks - 1 - rank


def chunk_length(length: int, ranks: int) -> int:
    """S / 2n. Raises ValueError unless the sequence can be cut into 2n equal chunks."""
    if length <= 0 or length % (2 * ranks):
        raise ValueError(
            f"the sequence has {length} tokens for {ranks} ranks of context parallelism; accepted: a "
            f"multiple of {2 * ranks}, two chunks for each rank. Pad the sequence."
        )
    return length // (2 * ranks)


def split(x, rank: int, ranks: int):
    """The tokens of ``x`` [B, S, ...], a tensor or an array with the whole sequence, that a rank holds."""
    size = chunk_length(x.shape[1], ranks)
    return _concatenated([x[:, c * size : (c + 1) * size] for c in chunks_of(rank, ranks)])


def merge(parts: Sequence):
    """The whole sequence from the parts of all ranks, in rank order; the inverse of ``split``."""
    ranks = len(parts)
    chunks: list = [None] * (2 * ranks)
    for rank, part in enumerate(parts):
        size, odd = divmod(part.shape[1], 2)
        assert not odd, part.shape
        first, second = chunks_of(rank, ranks)
        chunks[first], chunks[second] = part[:, :size], part[:, size:]
    return _concatenated(chunks)


def _concatenated(parts: list):
    return np.concatenate(parts, 1) if isinstance(parts[0], np.ndarray) else paddle.concat(parts, 1)
