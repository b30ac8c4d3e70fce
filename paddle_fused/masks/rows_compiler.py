"""Recognizes mask types in FlashMask's row indices, so that CANN's sparse modes can express them.

Fully masked rows, such as padding at the end of a packed row, give zeros, so the compiled mask may leave any
key unmasked for them. Such tokens are called free. A run of free tokens becomes a document, and its rows are
zeroed after the call.

Legend: B batch, S tokens (the number of queries and of keys); i counts queries and j keys. The rows that
attend to key j are first[j] <= i < end[j].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .row_indices import RowIndices
from .sequences import Sequence
from .types import Band, Documents, Mask, Prefix

REPEATED = 2  # shared questions: limit of packed tokens, as a multiple of the tokens


@dataclass(frozen=True, eq=False)
class Meaning:
    """The mask types or sequences that row indices express. Both are None if CANN has no mode for them.

    Attributes:
        parts: masks whose intersection equals the row indices.
        sequences: causal sequences over ``tokens``.
        tokens: the index in the batch [B * S] of each packed token.
        own: the index among the packed tokens of each token of the batch. For a shared question, this is its
            copy in the first sequence.
        fully_masked: bool [B, H, S], the fully masked rows, or None.
    """

    parts: tuple[Mask, ...] | None = None
    sequences: tuple[Sequence, ...] | None = None
    tokens: np.ndarray | None = None
    own: np.ndarray | None = None
    fully_masked: np.ndarray | None = None

    def count_sequences(self, batch: int) -> int:
        """The number of sequences in the packed batch; 0 if nothing is packed."""
        if self.sequences is not None:
            return len(self.sequences)
        for part in self.parts or ():
            if isinstance(part, Documents):
                return sum(map(len, part.rows)) * (batch if part.batch_size is None else 1)
        return 0


def meaning_of(mask: RowIndices, query_len: int, key_len: int) -> Meaning:
    """The mask types or sequences that are equivalent to ``mask`` for these sizes."""
    mask.check_keys(key_len)
    fully_masked = mask.fully_masked(query_len)
    fully_masked = fully_masked if fully_masked.any() else None
    ranges = mask.visible(query_len)
    if mask.causal and not (mask.ranges(query_len)[:, 0] < query_len).any():
        return Meaning(parts=(Band(None, 0, "bottom_right"),), fully_masked=fully_masked)
    seen = ranges[:, 0] < ranges[:, 1]
    if mask.heads > 1 or query_len != key_len or (seen.sum(0) > 1).any():
        return Meaning(fully_masked=fully_masked)
    first, end = np.where(seen, ranges[:, 0], 0).max(0)[:, 0], np.where(seen, ranges[:, 1], 0).max(0)[:, 0]
    free = (first >= end) & (False if fully_masked is None else fully_masked[:, 0])
    parts = _documents(first, end, free, mask.batch_size)
    if parts is None and not free.any():
        parts = _prefix(first, end, mask.batch_size)
    if parts is not None:
        return Meaning(parts=parts, fully_masked=fully_masked)
    return _shared_questions(first, end, free, fully_masked)


def _documents(first, end, free, batch_size) -> tuple[Mask, ...] | None:
    """Consecutive documents with a band inside them. ``first``, ``end``, ``free``: [B, S]."""
    size = first.shape[1]
    j = np.arange(size)
    kept = ~free
    if (kept & ((first > j) | (end <= j))).any():  # a token that does not attend to itself
        return None
    left, right = (end - j)[kept].max(initial=1) - 1, (j - first)[kept].max(initial=0)
    rows, bounded_left, bounded_right = [], False, False
    for first_, end_, free_ in zip(first, end, free, strict=True):
        starts = np.zeros(size + 1, bool)
        starts[[0, size]] = True
        starts[1:size] |= (free_[1:] != free_[:-1]) | (
            ~free_[1:] & (end_[:-1] == j[1:]) & (first_[1:] == j[1:])
        )
        cuts = np.flatnonzero(starts)
        lengths = np.diff(cuts)
        start, stop = np.repeat(cuts[:-1], lengths), np.repeat(cuts[1:], lengths)
        inside = np.maximum(start, j - right), np.minimum(stop, j + left + 1)
        if (~free_ & ((first_ != inside[0]) | (end_ != inside[1]))).any():
            return None
        bounded_left |= bool((~free_ & (end_ < stop)).any())
        bounded_right |= bool((~free_ & (first_ > start)).any())
        rows.append(tuple(lengths.tolist()))
    causal = bool(right == 0)
    band = Band(int(left) if bounded_left else None, int(right) if bounded_right else None, "bottom_right")
    bands = () if (band.left, band.right) == (None, None) else (band,)
    if all(len(row) == 1 for row in rows):
        return bands
    if causal and band.left is None:
        bands = ()
    rows = tuple(rows) if batch_size is not None else (rows[0],)
    return (Documents(rows, rows, batch_size, causal, "bottom_right", None), *bands)


def _prefix(first, end, batch_size) -> tuple[Mask, ...] | None:
    size = first.shape[1]
    j = np.arange(size)
    lengths = (first == 0).cumprod(1).sum(1)
    if (end != size).any() or (first != np.where(j < lengths[:, None], 0, j)).any():
        return None
    return (Prefix(tuple(lengths.tolist()), batch_size),)


def _shared_questions(first, end, free, fully_masked) -> Meaning:
    """Causal sequences that begin with the same tokens: a tree of a question and its answers.

    Each path from a root to a leaf becomes one sequence, with its own copy of the shared tokens.
    """
    size = first.shape[1]
    sequences, tokens, own = [], [], np.empty(first.size, np.int64)
    if (~free & (first != np.arange(size))).any():
        return Meaning(fully_masked=fully_masked)
    count = 0
    for b, (end_, free_) in enumerate(zip(end, free, strict=True)):
        paths = _paths(_ends(end_, free_))
        if paths is None:
            return Meaning(fully_masked=fully_masked)
        for path in paths:
            of_row = b * size + np.concatenate([np.arange(*segment) for segment in path])
            tokens.append(of_row)
            sequences.append(Sequence(len(of_row), len(of_row), None, 0, count, count))
            count += len(of_row)
    if count > REPEATED * first.size:
        return Meaning(fully_masked=fully_masked)
    tokens = np.concatenate(tokens)
    own[tokens[::-1]] = np.arange(count)[::-1]  # reversed, so the first copy of each token is written last
    return Meaning(sequences=tuple(sequences), tokens=tokens, own=own, fully_masked=fully_masked)


def _ends(end, free) -> np.ndarray:
    """``end``, with a separate end for each run of free tokens."""
    stops = np.flatnonzero(np.diff(free, append=False)) + 1  # ends of the runs and of the gaps between them
    run = np.searchsorted(stops, np.arange(len(end)), side="right")
    return np.where(free, np.append(stops, len(end))[run], end)


def _paths(end) -> list[list[tuple[int, int]]] | None:
    """The segments [start, stop) on the path from each root to each leaf; None if the ends are not nested."""
    starts = np.flatnonzero(np.diff(end, prepend=-1))
    stack: list[tuple[int, int, int]] = []
    paths = []
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(end)], strict=True):
        reach = int(end[start])
        while stack and stack[-1][2] <= start:
            stack.pop()
        if reach < stop or (stack and reach > stack[-1][2]):
            return None
        stack.append((start, stop, reach))
        if reach == stop:
            paths.append([segment[:2] for segment in stack])
    return paths
