"""FlashMask's masks: the masked query rows of each key.

Their size is O(S). ``rows_compiler`` finds a CANN sparse mode for them; `rows_of` converts other masks to row
indices.

Legend: B batch, H 1 or the number of query heads, Sq queries, Skv keys; i counts queries and j keys.
Source: paddle.nn.functional.flashmask_attention; arXiv 2410.01359.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import paddle

from .types import Band, Documents, Mask, Prefix, diagonal

COLUMNS = {True: (1, 2), False: (2, 4)}  # accepted, by ``causal``
# Cached masks, each with its compiled plan: enough for a model's layers and the micro-batches in flight.
_CACHED = 8


@dataclass(frozen=True, repr=False, eq=False)
class RowIndices(Mask):
    """Masked query rows for each key. Fully masked rows give zeros.

    ``indices``: int32 [B, H, Skv, columns], where the columns are the start and end (exclusive) of row
    ranges. With ``causal``: (start) or (start, end), below the diagonal. Otherwise: (lower start, upper end)
    or (lower start, lower end, upper start, upper end). A range without an end extends to the last row; a
    range without a start begins at row 0.
    """

    indices: np.ndarray
    causal: bool

    def __repr__(self) -> str:
        return f"row_indices(<int32 {list(self.indices.shape)}>{'' if self.causal else ', causal=False'})"

    @property
    def batch_size(self) -> int | None:
        return None if len(self.indices) == 1 else len(self.indices)

    @property
    def heads(self) -> int:
        return self.indices.shape[1]

    def of_part(self, rows, heads):
        return _part(self, (rows.start, rows.stop), (heads.start, heads.stop))

    def ranges(self, query_len: int) -> np.ndarray:
        """Masked rows [range, start or end, B, H, Skv] within 0 ... Sq, without those masked by causal."""
        columns = np.moveaxis(self.indices, -1, 0)
        start, end = np.zeros_like(columns[0]), np.full_like(columns[0], query_len)
        if self.causal:
            pairs = [(columns[0], columns[1] if len(columns) == 2 else end)]
        elif len(columns) == 2:
            pairs = [(columns[0], end), (start, columns[1])]
        else:
            pairs = [(columns[0], columns[1]), (columns[2], columns[3])]
        return np.clip(np.array(pairs), 0, query_len)

    def visible(self, query_len: int) -> np.ndarray:
        """The query rows that attend to each key, as up to four ranges: [range, start or end, B, H, Skv]."""
        hidden = self.ranges(query_len)
        key_len = hidden.shape[-1]
        if self.causal:
            before = np.arange(key_len) - diagonal("bottom_right", query_len, key_len)
            before = np.broadcast_to(np.clip(before, 0, query_len), hidden.shape[2:])
            hidden = np.concatenate([hidden, np.stack([np.zeros_like(before), before])[None]])
        empty = hidden[:, 0] >= hidden[:, 1]
        hidden = np.where(empty[:, None], query_len, hidden)
        order = np.argsort(hidden[:, 0], axis=0)
        first, end = (np.take_along_axis(hidden[:, side], order, axis=0) for side in (0, 1))
        begin = np.concatenate([np.zeros_like(end[:1]), np.maximum.accumulate(end, axis=0)])
        return np.stack([begin, np.concatenate([first, np.full_like(first[:1], query_len)])], axis=1)

    def fully_masked(self, query_len: int) -> np.ndarray:
        """The fully masked rows: bool [B, H, Sq]."""
        batch, heads = self.indices.shape[:2]
        width = query_len + 1
        row = width * np.arange(batch * heads).reshape(batch, heads, 1)
        change = np.zeros(batch * heads * width, np.int64)
        for first, end in self.visible(query_len):
            seen = first < end
            change += np.bincount((first + row)[seen], minlength=change.size)
            change -= np.bincount((end + row)[seen], minlength=change.size)
        return change.reshape(batch, heads, width).cumsum(-1)[..., :query_len] == 0

    def _hidden(self, i, j, query_len, key_len, b):
        self.check_keys(key_len)
        hidden = np.zeros((self.heads, *np.broadcast_shapes(i.shape, j.shape)), bool)
        for first, end in self.ranges(query_len)[:, :, b]:
            hidden |= (i >= first[:, None]) & (i < end[:, None])
        if self.causal:
            hidden |= j > i + diagonal("bottom_right", query_len, key_len)
        return hidden[0] if self.heads == 1 else hidden

    def check_keys(self, key_len: int) -> None:
        """Raises ValueError unless every key has an index."""
        if self.indices.shape[2] != key_len:
            raise ValueError(f"{self!r} covers {self.indices.shape[2]} keys; the tensors have {key_len}.")


@lru_cache(maxsize=16)  # all layers of a process use the same part
def _part(mask: RowIndices, rows: tuple[int, int], heads: tuple[int, int]) -> RowIndices:
    indices = mask.indices if mask.batch_size is None else mask.indices[slice(*rows)]
    return RowIndices(indices if mask.heads == 1 else indices[:, slice(*heads)], mask.causal)


def within_bands(mask: Mask, query_len: int, key_len: int) -> Mask:
    """Merges causal row indices without ends and bands, if possible; otherwise returns ``mask``."""
    rows = [part for part in mask.parts if isinstance(part, RowIndices)]
    bands = tuple(part for part in mask.parts if isinstance(part, Band))
    if len(rows) != 1 or not bands or 1 + len(bands) != len(mask.parts):
        return mask
    if not rows[0].causal or rows[0].indices.shape[-1] != 1:
        return mask
    return _within(rows[0], bands, query_len, key_len) or mask


@lru_cache(maxsize=16)
def _within(rows: RowIndices, bands: tuple[Band, ...], query_len: int, key_len: int) -> RowIndices | None:
    """None if a band masks more keys above the diagonal than the causal mask."""
    first = rows.indices
    for band in bands:
        at = diagonal(band.align, query_len, key_len)
        if band.right is not None and at + band.right < key_len - query_len:
            return None
        if band.left is not None:
            after = np.clip(np.arange(key_len) - at + band.left + 1, 0, query_len)
            first = np.minimum(first, after[:, None].astype(np.int32))
    return RowIndices(first, causal=True)


def row_indices(indices, causal: bool = True) -> Mask:
    """FlashMask's mask for these row indices. With ``causal``, keys after the diagonal are masked as well.

    Args:
        indices: int32 tensor or array [B, H, Skv, columns], as ``startend_row_indices`` of
            paddle.nn.functional.flashmask_attention; H is 1 or the number of query heads. A tensor is copied
            from its device. Equal values give the same mask.
        causal: the diagonal ends at the bottom right. There are 1 or 2 columns with causal, otherwise 2 or 4.

    Fully masked rows give zeros. Raises ValueError for other dtypes, ranks and numbers of columns, and for
    values of a captured program; `paddle_fused.flashmask_attention` accepts these.
    """
    if not isinstance(indices, (paddle.Tensor, np.ndarray)):
        raise ValueError(
            f"row_indices() got {type(indices).__name__}; accepted: an int32 tensor or array. Create it "
            "with paddle.to_tensor(rows, dtype='int32')."
        )
    check_form("row_indices", "indices", indices, causal)
    if isinstance(indices, np.ndarray):
        return RowIndices(indices.copy(), bool(causal))
    return _of_tensor(indices, bool(causal))


def check_form(operator: str, name: str, indices, causal: bool) -> None:
    """Raises ValueError if the dtype, rank or number of columns of row indices is invalid."""
    dtype = str(indices.dtype).rpartition(".")[2].lower()
    if dtype != "int32":
        raise ValueError(
            f"{operator}: {name} is {dtype}; accepted: int32. Cast it with {name}.astype('int32')."
        )
    shape = list(indices.shape)
    if len(shape) != 4:
        raise ValueError(
            f"{operator}: {name} has shape {shape}; accepted: [batch, 1 or heads, keys, columns]. Insert the "
            "missing dimension with unsqueeze."
        )
    if shape[-1] not in COLUMNS[bool(causal)]:
        raise ValueError(
            f"{operator}: {name} has {shape[-1]} columns with causal={bool(causal)}; accepted: 1 or 2 with "
            "causal=True, 2 or 4 with causal=False."
        )


_masks: deque[RowIndices] = deque(maxlen=_CACHED)


def _of_tensor(indices: paddle.Tensor, causal: bool) -> RowIndices:
    """The mask with the tensor's values, which every call reads. Equal values give the same mask.

    A cheaper check would miss changes: ``set_value``, ``copy_``, DLPack and collectives write to a tensor's
    memory without changing its ``inplace_version``.
    """
    rows = _same_for_all_heads(indices.numpy())
    for mask in _masks:
        if mask.causal == causal and np.array_equal(mask.indices, rows):
            return mask
    mask = RowIndices(rows, causal)
    _masks.appendleft(mask)
    return mask


def _same_for_all_heads(indices: np.ndarray) -> np.ndarray:
    return indices[:, :1].copy() if (indices == indices[:, :1]).all() else indices


def hidden_in_graph(indices, causal: bool, rows, columns, shift):
    """Masked positions as a bool tensor [B, H, rows, columns], computed on the device.

    ``indices``: int32 tensor [B, H, columns, 1, 2 or 4] of these keys. ``rows``, ``columns``: int32 tensors
    with the positions of queries and keys. ``shift``: Skv - Sq.
    """
    i = rows.unsqueeze(-1)
    column = [column.unsqueeze(-2) for column in indices.unbind(-1)]
    hidden = i >= column[0]
    if len(column) == 4 or (causal and len(column) == 2):
        hidden = paddle.logical_and(hidden, i < column[1])
    if not causal:
        above = i < column[-1]
        if len(column) == 4:
            above = paddle.logical_and(above, i >= column[2])
        hidden = paddle.logical_or(hidden, above)
    else:
        hidden = paddle.logical_or(hidden, columns.unsqueeze(0) > i + shift)
    return hidden


def rows_of(mask: Mask, query_len: int, key_len: int) -> RowIndices | None:
    """Row indices equivalent to ``mask``, or None if a part is not a band, prefix or documents mask."""
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
