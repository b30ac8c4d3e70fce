"""Attention mask types: the keys that each query attends to, for any layout, sparse mode and device.

Legend: B batch, N heads, Sq queries, Skv keys; i counts queries and j keys, both from 0. ``to_dense`` defines
each mask in plain numpy and is the reference for the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import paddle

from .. import contracts
from ..ops.arguments import check_int, check_ints

ALIGNMENTS = ("bottom_right", "top_left")
OPERATOR = "flash_attention"


class Mask:
    """An attention mask. ``a & b`` is the intersection: a query attends to the keys that both masks allow.

    Masks created with the same arguments compare equal and have the same hash. A mask from `dense` equals
    only itself.
    """

    batch_size: int | None  # None: the same mask for every batch element
    heads = 1  # the number of heads with separate masks
    explain: Callable[..., str]  # `explain.explain`, set by the package

    @property
    def parts(self) -> tuple[Mask, ...]:
        """The masks whose intersection is this mask."""
        return (self,)

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise ValueError(
                f"{self!r} & {type(other).__name__}; accepted: masks of paddle_fused.masks on both sides. "
                "Convert a bool tensor with masks.dense(tensor), where True means masked."
            )
        return Intersection(self.parts + other.parts)

    def to_dense(self, query_len: int, key_len: int | None = None) -> np.ndarray:
        """Masked positions (True = masked), bool: [Sq, Skv], or [B, 1, Sq, Skv] if batch elements differ.

        A mask from `dense` that differs between heads returns [B, N, Sq, Skv]. ``key_len`` defaults to
        ``query_len``. In layout TND this is the mask of one sequence.
        """
        key_len = query_len if key_len is None else key_len
        i, j = np.arange(query_len)[:, None], np.arange(key_len)[None, :]
        hidden = [
            np.broadcast_to(h, np.broadcast_shapes(h.shape, (query_len, key_len)))
            for h in (self._hidden(i, j, query_len, key_len, b) for b in range(self.batch_size or 1))
        ]
        if self.batch_size is None and hidden[0].ndim == 2:
            return hidden[0].copy()
        return np.stack([h if h.ndim == 3 else h[None] for h in hidden])

    def of_sequence(self, s: int, query_lens: tuple[int, ...]) -> Mask:
        """The mask of sequence ``s`` in layout TND. ``query_lens``: the lengths of all sequences."""
        return self

    def of_part(self, rows: slice, heads: slice) -> Mask:
        """The mask for a slice of the batch and a slice of the heads."""
        return self

    def _hidden(self, i, j, query_len: int, key_len: int, b: int) -> np.ndarray:
        """Masked positions of batch element ``b``; broadcasts to [Sq, Skv] or [N, Sq, Skv]."""
        raise NotImplementedError


def diagonal(align: str, query_len: int, key_len: int) -> int:
    """The key on query 0's diagonal: 0, or Skv - Sq if the last query is aligned with the last key."""
    return key_len - query_len if align == "bottom_right" else 0


@dataclass(frozen=True, repr=False)
class Band(Mask):
    """Keys from ``left`` before the diagonal to ``right`` after it. None means no bound on that side."""

    left: int | None
    right: int | None
    align: str
    batch_size = None

    def __repr__(self) -> str:
        align = [] if self.align == "bottom_right" else [f"align={self.align!r}"]
        if (self.left, self.right) == (None, 0):
            return f"causal({', '.join(align)})"
        return f"band({', '.join([str(self.left), str(self.right), *align])})"

    def _hidden(self, i, j, query_len, key_len, b):
        at = i + diagonal(self.align, query_len, key_len)
        hidden = np.zeros((query_len, key_len), bool)
        if self.left is not None:
            hidden |= j < at - self.left
        if self.right is not None:
            hidden |= j > at + self.right
        return hidden


@dataclass(frozen=True, repr=False)
class Prefix(Mask):
    """The first ``lengths[b]`` keys, and the keys up to the diagonal that ends at the bottom right."""

    lengths: tuple[int, ...]
    batch_size: int | None

    def __repr__(self) -> str:
        return f"prefix({self.lengths[0] if self.batch_size is None else list(self.lengths)})"

    def of_part(self, rows, heads):
        if self.batch_size is None:
            return self
        lengths = self.lengths[rows]
        return Prefix(lengths, len(lengths))

    def _hidden(self, i, j, query_len, key_len, b):
        return (j > i + key_len - query_len) & (j >= self.lengths[b])


@dataclass(frozen=True, repr=False)
class Documents(Mask):
    """Block-diagonal: the documents of a packed row do not attend to each other."""

    rows: tuple[tuple[int, ...], ...]  # document lengths of each row
    key_rows: tuple[tuple[int, ...], ...]
    batch_size: int | None
    causal: bool
    align: str
    query_start: int | None  # None: the queries cover the whole row

    def __repr__(self) -> str:
        def of(rows):
            return str(list(rows[0]) if self.batch_size is None else [list(row) for row in rows])

        words = [of(self.rows)]
        words += [] if self.causal else ["causal=False"]
        words += [] if self.key_rows == self.rows else [f"key_seqlens={of(self.key_rows)}"]
        words += [] if self.align == "bottom_right" else [f"align={self.align!r}"]
        words += [] if self.query_start is None else [f"query_start={self.query_start}"]
        return f"documents({', '.join(words)})"

    def of_part(self, rows, heads):
        if self.batch_size is None:
            return self
        own, own_keys = self.rows[rows], self.key_rows[rows]
        return replace(self, rows=own, key_rows=own_keys, batch_size=len(own))

    def _hidden(self, i, j, query_len, key_len, b):
        self.check_lengths(query_len, key_len)
        query_lens, key_lens = np.array(self.rows[b]), np.array(self.key_rows[b])
        query_ends, key_ends = query_lens.cumsum(), key_lens.cumsum()
        query = i + (self.query_start or 0)
        query_document = np.searchsorted(query_ends, query, side="right")
        key_document = np.searchsorted(key_ends, j, side="right")
        hidden = query_document != key_document
        if self.causal and query_len and key_len:
            shift = (key_lens - query_lens)[query_document] if self.align == "bottom_right" else 0
            query_position = query - (query_ends - query_lens)[query_document]
            key_position = j - (key_ends - key_lens)[key_document]
            hidden = hidden | (key_position > query_position + shift)
        return hidden

    def check_lengths(self, query_len: int, key_len: int) -> None:
        """Raises ValueError unless the document lengths add up to the queries and the keys."""
        for row, key_row in zip(self.rows, self.key_rows, strict=True):
            start, whole = self.query_start or 0, self.query_start is None
            fits = query_len == sum(row) if whole else start + query_len <= sum(row)
            if not fits or key_len != sum(key_row):
                queries = f"{query_len} queries" + ("" if whole else f" from token {start} on")
                raise ValueError(
                    f"{self!r}: the documents have {sum(row)} queries and {sum(key_row)} keys, and the "
                    f"tensors have {queries} and {key_len} keys. "
                    "Add a separate document for padding at the end."
                )


@dataclass(frozen=True, repr=False, eq=False)
class Dense(Mask):
    """A mask tensor; True means masked."""

    hidden: object  # paddle.Tensor, paddle.pir.Value or numpy array
    invalid_rows: bool

    def __repr__(self) -> str:
        invalid_rows = ", invalid_rows=True" if self.invalid_rows else ""
        return f"dense(<bool {list(self.hidden.shape)}, True = masked>{invalid_rows})"

    @property
    def batch_size(self) -> int | None:
        shape = self.hidden.shape
        return shape[0] if len(shape) == 4 and shape[0] != 1 else None

    @property
    def heads(self) -> int:
        shape = self.hidden.shape
        return shape[1] if len(shape) == 4 else 1

    def of_part(self, rows, heads):
        hidden = self.hidden if self.batch_size is None else self.hidden[rows]
        return Dense(hidden if self.heads == 1 else hidden[:, heads], self.invalid_rows)

    def _hidden(self, i, j, query_len, key_len, b):
        hidden = self.hidden if isinstance(self.hidden, np.ndarray) else self.hidden.numpy()
        hidden = hidden[b] if hidden.ndim == 4 else hidden
        if hidden.shape[-2:] != (query_len, key_len):
            raise ValueError(f"{self!r}: the tensors have {query_len} queries and {key_len} keys.")
        return hidden[0] if hidden.ndim == 3 and len(hidden) == 1 else hidden


@dataclass(frozen=True, repr=False)
class Intersection(Mask):
    """A query attends to the keys that every member allows."""

    members: tuple[Mask, ...]

    def __post_init__(self):
        sizes = {part.batch_size for part in self.members} - {None}
        if len(sizes) > 1:
            raise ValueError(f"{self!r}: the batch sizes are {sorted(sizes)}; accepted: equal batch sizes.")

    @property
    def parts(self) -> tuple[Mask, ...]:
        return self.members

    def of_sequence(self, s, query_lens):
        return Intersection(tuple(part.of_sequence(s, query_lens) for part in self.members))

    def of_part(self, rows, heads):
        return Intersection(tuple(part.of_part(rows, heads) for part in self.members))

    @property
    def batch_size(self) -> int | None:
        return next((part.batch_size for part in self.members if part.batch_size is not None), None)

    def __repr__(self) -> str:
        return " & ".join(map(repr, self.members))

    def _hidden(self, i, j, query_len, key_len, b):
        hidden = np.zeros((query_len, key_len), bool)
        for part in self.members:
            own = 0 if part.batch_size is None else b
            hidden = hidden | part._hidden(i, j, query_len, key_len, own)
        return hidden


def causal(align: str = "bottom_right") -> Mask:
    """Query i attends to the keys ``j <= i + Skv - Sq`` ("bottom_right") or ``j <= i`` ("top_left").

    "bottom_right" is flash-attention's causal mask: the last query attends to all keys, as decoding with a
    cache requires. "top_left" is ``numpy.tril``. With Sq = Skv they are equal. Raises ValueError for other
    ``align``.
    """
    return band(None, 0, align)


def band(left: int | None, right: int | None, align: str = "bottom_right") -> Mask:
    """Query i attends to the keys ``i + d - left <= j <= i + d + right``.

    d is Skv - Sq with "bottom_right" (the last query is aligned with the last key) and 0 with "top_left".
    None or -1 means no bound on that side, as in flash-attention's ``window_size``: ``band(127, 0)`` is a
    causal window of 128 keys. Raises ContractError if the band is empty, ValueError for other negative
    numbers and other values of ``align``.
    """
    if align not in ALIGNMENTS:
        raise ValueError(f"align is {align!r}; accepted: {' or '.join(map(repr, ALIGNMENTS))}.")
    left, right = (_bound(name, bound) for name, bound in (("left", left), ("right", right)))
    if left is not None and right is not None and left + right < 0:
        contracts.refuse("attention.band_bottom_right", OPERATOR, f"band({left}, {right}) contains no key")
    for name, bound in (("left", left), ("right", right)):
        if bound is not None and bound < 0:
            raise ValueError(
                f"{name} is {bound}; accepted: a non-negative number of keys, or None (or -1) for no bound. "
                "For a band that excludes the diagonal, use sparse_mode 4 of "
                "paddle_fused.compat.npu_fusion_attention."
            )
    return Band(left, right, align)


def _bound(name: str, bound) -> int | None:
    bound = None if bound is None else check_int("band", name, bound)
    return None if bound == -1 else bound


def prefix(lengths: int | Sequence[int]) -> Mask:
    """Query i of batch element b attends to the keys ``j < lengths[b]`` and ``j <= i + Skv - Sq``.

    ``lengths``: one int for the whole batch, or B ints. The prefix is bidirectional, the rest causal.
    Raises ValueError for negative lengths.
    """
    lengths = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    one_for_all = isinstance(lengths, str) or not isinstance(lengths, Sequence)
    values = _lengths("prefix", "lengths", [lengths] if one_for_all else lengths)
    return Prefix(values, None if one_for_all else len(values))


def documents(
    seqlens: Sequence,
    causal: bool = True,
    *,
    key_seqlens: Sequence | None = None,
    align: str = "bottom_right",
    query_start: int | None = None,
) -> Mask:
    """Packed documents: a query attends only to keys of its own document, with ``causal`` to earlier ones.

    Args:
        seqlens: document lengths (not cumulative): one list for all rows of the batch, or a list per row.
            They
            add up to Sq. Padding at the end is a separate document.
        key_seqlens: document lengths of the keys, if they differ. ``align`` then aligns each pair, as in
            `causal`.
        query_start: the queries are the part of the packed row that starts at this token, as in context
            parallelism; the keys are the whole row.

    Raises ValueError for negative or missing lengths, and for lengths that do not add up to the tensors'.
    """
    if align not in ALIGNMENTS:
        raise ValueError(f"align is {align!r}; accepted: {' or '.join(map(repr, ALIGNMENTS))}.")
    query_start = None if query_start is None else check_int("documents", "query_start", query_start)
    if query_start is not None and query_start < 0:
        raise ValueError(f"query_start is {query_start}; accepted: the non-negative index of a token.")
    rows, batch_size = _rows("seqlens", seqlens)
    key_rows, key_batch_size = (
        (rows, batch_size) if key_seqlens is None else _rows("key_seqlens", key_seqlens)
    )
    if [len(row) for row in rows] != [len(row) for row in key_rows] or batch_size != key_batch_size:
        raise ValueError(
            f"seqlens {seqlens} and key_seqlens {key_seqlens} must have equal numbers of documents."
        )
    return Documents(rows, key_rows, batch_size, bool(causal), align, query_start)


def dense(hidden, invalid_rows: bool = False) -> Mask:
    """A mask from a bool tensor, **True = masked** (as in CANN; in PyTorch and Paddle True means unmasked).

    Args:
        hidden: [Sq, Skv], [1, 1, Sq, Skv], [B, 1, Sq, Skv] or [B, N, Sq, Skv]; in layout TND [longest Sq,
            longest Skv], shared by all sequences. A numpy array is copied.
        invalid_rows: allow fully masked rows, whose output and gradients are then zero.

    Raises ValueError for other types, dtypes and ranks.
    """
    if not isinstance(hidden, (paddle.Tensor, paddle.pir.Value, np.ndarray)):
        raise ValueError(
            f"dense() got {type(hidden).__name__}; accepted: a bool tensor or numpy array. "
            "Create one with paddle.to_tensor."
        )
    if str(hidden.dtype).removeprefix("paddle.") != "bool":
        raise ValueError(
            f"dense() got {hidden.dtype}; accepted: bool, where True means masked. "
            "Pass (mask != 0) for an additive mask, ~mask for a mask where True means unmasked."
        )
    if len(hidden.shape) not in (2, 4):
        raise ValueError(
            f"dense() got the shape {list(hidden.shape)}; accepted: [Sq, Skv] or [B, N, Sq, Skv]."
        )
    return Dense(hidden.copy() if isinstance(hidden, np.ndarray) else hidden, bool(invalid_rows))


def _lengths(operator: str, name: str, lengths) -> tuple[int, ...]:
    values = check_ints(operator, name, lengths)
    if not values or min(values) < 0:
        raise ValueError(f"{operator}: {name} is {list(values)}; accepted: one or more non-negative lengths.")
    return values


def _rows(name: str, seqlens) -> tuple[tuple[tuple[int, ...], ...], int | None]:
    """The lengths of each row, and the batch size if the lengths are per row."""
    seqlens = seqlens.tolist() if hasattr(seqlens, "tolist") else seqlens
    if isinstance(seqlens, Sequence) and any(isinstance(row, (list, tuple)) for row in seqlens):
        return tuple(_lengths("documents", f"a row of {name}", row) for row in seqlens), len(seqlens)
    return (_lengths("documents", name, seqlens),), None
