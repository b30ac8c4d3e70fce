"""Sequences, and the band of keys that each query sees.

Legend: i counts the queries and j the keys of one sequence, both from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .intents import Band, Documents, Mask, diagonal


@dataclass(frozen=True)
class Sequence:
    """Queries and keys, and the band ``i + low <= j <= i + high`` between them (None: no bound)."""

    query_len: int
    key_len: int
    low: int | None = None
    high: int | None = None
    query_offset: int = 0  # the position of its first token among all tokens
    key_offset: int = 0

    @property
    def last_diagonal(self) -> int:
        """The key at query 0's diagonal if the last query is aligned with the last key."""
        return self.key_len - self.query_len

    @property
    def bounds(self) -> tuple[int, int]:
        """low and high, clipped to the matrix."""
        narrowest, widest = 1 - self.query_len, self.key_len - 1
        low = narrowest if self.low is None else max(self.low, narrowest)
        return low, widest if self.high is None else min(self.high, widest)

    @property
    def is_empty(self) -> bool:
        """Whether no query sees a key."""
        low, high = self.bounds
        return low > high or low >= self.key_len or high <= -self.query_len

    @property
    def has_blind_query(self) -> bool:
        """Whether some query sees no key: then the first or the last one sees none."""
        low, high = self.bounds
        return self.query_len > 0 and (low > high or high < 0 or self.query_len - 1 + low >= self.key_len)

    def acts_like(self, low: int | None, high: int | None) -> bool:
        """Whether the band ``low``, ``high`` hides the same keys."""
        return self.bounds == replace(self, low=low, high=high).bounds

    def within(self, low: int | None, high: int | None) -> Sequence:
        """The intersection with another band of this sequence."""
        lows = [bound for bound in (self.low, low) if bound is not None]
        highs = [bound for bound in (self.high, high) if bound is not None]
        return replace(self, low=max(lows, default=None), high=min(highs, default=None))

    def within_band(self, band: Band, query_len: int, key_len: int) -> Sequence:
        """The intersection with a band over all ``query_len`` and ``key_len`` tokens."""
        at = diagonal(band.align, query_len, key_len) + self.query_offset - self.key_offset
        return self.within(
            None if band.left is None else at - band.left, None if band.right is None else at + band.right
        )


def document_sequences(documents: Documents, b: int, query_len: int, key_len: int) -> list[Sequence]:
    """The documents of row ``b``. With ``query_start`` some have no queries, or only part of them."""
    documents.check_lengths(query_len, key_len)
    start, query_end, key_end, sequences = documents.query_start or 0, 0, 0, []
    for whole_query_len, document_key_len in zip(documents.rows[b], documents.key_rows[b], strict=True):
        document_start, query_end = query_end, query_end + whole_query_len
        key_offset, key_end = key_end, key_end + document_key_len
        first, last = max(document_start, start), min(query_end, start + query_len)
        shift = diagonal(documents.align, whole_query_len, document_key_len)
        sequences.append(
            Sequence(
                max(0, last - first),
                document_key_len,
                None,
                first - document_start + shift if documents.causal and last > first else None,
                min(max(0, first - start), query_len),
                key_offset,
            )
        )
    return sequences


@dataclass(frozen=True)
class Blocks(Mask):
    """Block-diagonal: each sequence sees its own band only."""

    sequences: tuple[Sequence, ...]
    batch_size = None

    def _hidden(self, i, j, query_len, key_len, b):
        hidden = np.ones((query_len, key_len), bool)
        for s in self.sequences:
            low, high = s.bounds
            i, j = np.arange(s.query_len)[:, None], np.arange(s.key_len)[None, :]
            rows = slice(s.query_offset, s.query_offset + s.query_len)
            hidden[rows, s.key_offset : s.key_offset + s.key_len] = (j < i + low) | (j > i + high)
        return hidden
