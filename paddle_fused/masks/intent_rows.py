"""Masks of intents as row indices: O(S) in place of a matrix.

Legend: Sq queries, Skv keys; i counts queries and j keys. A key is seen by the rows first <= i < end.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .intents import Band, Documents, Mask, Prefix, diagonal
from .row_indices import RowIndices


def rows_of(mask: Mask, query_len: int, key_len: int) -> RowIndices | None:
    """Row indices that hide what ``mask`` hides; None if a part is no band, prefix or documents."""
    if not all(isinstance(part, (Band, Prefix, Documents)) for part in mask.parts):
        return None
    return _intersection(mask, query_len, key_len)


@lru_cache(maxsize=16)
def _intersection(mask: Mask, query_len: int, key_len: int) -> RowIndices:
    first = np.zeros((mask.batch_size or 1, key_len), np.int64)
    end = np.full_like(first, query_len)
    for part in mask.parts:
        for b in range(len(first)):
            own = 0 if part.batch_size is None else b
            first_, end_ = _OF[type(part)](part, own, query_len, key_len)
            first[b], end[b] = np.maximum(first[b], first_), np.minimum(end[b], end_)
    columns = np.stack([end, first], -1).clip(0, query_len)
    return RowIndices(columns[:, None].astype(np.int32), causal=False)


def _band(band: Band, b: int, query_len: int, key_len: int):
    row = np.arange(key_len) - diagonal(band.align, query_len, key_len)
    first = 0 if band.right is None else row - band.right
    return first, query_len if band.left is None else row + band.left + 1


def _prefix(prefix: Prefix, b: int, query_len: int, key_len: int):
    j = np.arange(key_len)
    return np.where(j < prefix.lengths[b], 0, j - (key_len - query_len)), query_len


def _documents(documents: Documents, b: int, query_len: int, key_len: int):
    documents.check_lengths(query_len, key_len)
    lengths, key_lengths = np.array(documents.rows[b]), np.array(documents.key_rows[b])
    ends = lengths.cumsum() - (documents.query_start or 0)
    starts = ends - lengths
    of_key = np.repeat(np.arange(len(key_lengths)), key_lengths)
    first, end = starts[of_key], ends[of_key]
    if documents.causal:
        position = np.arange(key_len) - (key_lengths.cumsum() - key_lengths)[of_key]
        shift = (key_lengths - lengths)[of_key] if documents.align == "bottom_right" else 0
        first = np.maximum(first, first + position - shift)
    return first, end


_OF = {Band: _band, Prefix: _prefix, Documents: _documents}
