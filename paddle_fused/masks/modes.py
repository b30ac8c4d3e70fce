"""CANN's sparse modes: names, mask tensors, dense equivalents, and the mode that expresses a plan.

A plan has bands, which `mode_of` translates to a mode. `SparseMode` is a mode chosen by the caller.

Legend: Sq queries, Skv keys, i counts queries and j keys, d = Skv - Sq. Source: ops-transformer
docs/zh/context/sparse_mode_introduction.md.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from .. import contracts
from .sequences import MaskPlan, Sequence, Shapes
from .types import Band, Dense, Intersection, Mask

NAMES = {
    0: "defaultMask",
    1: "allMask",
    2: "leftUpCausal",
    3: "rightDownCausal",
    4: "band",
    5: "prefix",
    6: "prefix, compressed",
    7: "rightDownCausal, last sequence is a band",
    8: "leftUpCausal, first sequence is a band",
}
UNBOUNDED = 2**31 - 1  # pre_tokens and next_tokens without a bound; CANN clips them to an int32


def compressed_mask() -> np.ndarray:
    """The mask of modes 2, 3, 4, 7 and 8: bool [2048, 2048], True above the diagonal."""
    size = contracts.limit("attention.compressed_mask")
    return np.triu(np.ones((size, size), bool), 1)


def compressed_prefix_mask() -> np.ndarray:
    """The mask of mode 6: ``compressed_mask``, then 1024 rows whose right half is True."""
    triangle = compressed_mask()
    size = len(triangle)
    rows = contracts.limit("attention.compressed_prefix_mask_rows") - size
    return np.concatenate([triangle, np.broadcast_to(np.arange(size) >= size // 2, (rows, size))])


def hidden_matrix(
    sparse_mode: int,
    query_len: int,
    key_len: int,
    *,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = UNBOUNDED,
    prefix: int | None = None,
    mask: np.ndarray | None = None,
    is_band: bool = False,
) -> np.ndarray:
    """The mask of a mode (True = masked): bool [Sq, Skv], or the shape of ``mask`` in modes 0, 1 and 5.

    ``prefix``: the length of this batch element. ``is_band``: whether this is the sequence with a band in
    mode 7 or 8. Mode 0 without a mask masks nothing, because CANN then ignores pre_tokens and next_tokens.
    """
    i, j = np.arange(query_len)[:, None], np.arange(key_len)[None, :]
    d = key_len - query_len
    if sparse_mode == 0 and mask is None:
        return np.zeros((query_len, key_len), bool)
    if sparse_mode == 0:
        return (j < i - pre_tokens) | (j > i + next_tokens) | mask
    if sparse_mode == 1:
        return mask
    if sparse_mode == 2 or (sparse_mode == 8 and not is_band):
        return j > i
    if sparse_mode == 3 or (sparse_mode == 7 and not is_band):
        return j > i + d
    if sparse_mode in (4, 7, 8):
        return (j < i + d - pre_tokens) | (j > i + d + next_tokens)
    hidden = (j > i + d) & (j >= prefix)
    if sparse_mode == 5:
        return hidden | mask
    assert sparse_mode == 6, sparse_mode
    return hidden


def hidden_sequences(
    sparse_mode: int,
    query_lens: abc.Sequence[int],
    key_lens: abc.Sequence[int],
    *,
    pre_tokens: int = UNBOUNDED,
    next_tokens: int = UNBOUNDED,
    prefix: abc.Sequence[int] | None = None,
    mask: np.ndarray | None = None,
) -> list[np.ndarray]:
    """`hidden_matrix` of each sequence in layout TND; all sequences share ``mask``."""
    with_queries = [s for s, length in enumerate(query_lens) if length] or [0]
    band = {7: with_queries[-1], 8: with_queries[0]}.get(sparse_mode)
    return [
        hidden_matrix(
            sparse_mode,
            q,
            k,
            pre_tokens=pre_tokens,
            next_tokens=next_tokens,
            prefix=None if prefix is None else prefix[s],
            mask=None if mask is None else mask[:q, :k],
            is_band=s == band,
        )
        for s, (q, k) in enumerate(zip(query_lens, key_lens, strict=True))
    ]


class CannMode(NamedTuple):
    """The arguments of CANN's operator that express the mask of a plan.

    ``mask`` is "none", "compressed", "compressed_prefix" or "full". ``why`` is the reason for this mode.
    """

    sparse_mode: int
    mask: str
    why: str
    pre_tokens: int = UNBOUNDED
    next_tokens: int = UNBOUNDED


def mode_of(plan: MaskPlan) -> CannMode:
    """CANN's cheapest mode for a plan."""
    if plan.full is not None:
        return _mode_of_full_mask(plan)
    if plan.prefix is not None:
        return CannMode(6, "compressed_prefix", "prefix: mode 6, with one compressed mask for all shapes")
    if not plan.sequences:
        return _mode_without_lengths(plan.band)
    if plan.packed:
        return mode_of_sequences(plan.sequences)
    return _mode_of_band(plan.sequences[0])


def _mode_of_full_mask(plan: MaskPlan) -> CannMode:
    if plan.prefix is not None:
        why = "custom mask inside a prefix: mode 5 computes only the prefix and the triangle"
        return CannMode(5, "full", why)
    bounded = [s for s in plan.sequences if s.query_len and not s.acts_like(None, None)]
    if bounded:
        why = "custom mask inside a band: mode 0 computes only the band"
        return CannMode(0, "full", why, *tokens(bounded[0].low, bounded[0].high, 0))
    return CannMode(1, "full", "no other mode expresses it: full mask, every block is computed")


def _mode_without_lengths(band: Band | None) -> CannMode:
    if band is None:
        return CannMode(0, "none", "no mask")
    if (band.left, band.right) == (None, 0):
        return CannMode(3 if band.align == "bottom_right" else 2, "compressed", "causal for any lengths")
    left = None if band.left is None else -band.left
    return CannMode(4, "compressed", "band for any lengths", *tokens(left, band.right, 0))


def _mode_of_band(s: Sequence) -> CannMode:
    """The mode of one band over all queries and keys."""
    d = s.last_diagonal
    if s.acts_like(None, None):
        return CannMode(0, "none", "nothing is masked: mode 0 without a mask")
    if s.acts_like(None, d):
        why = "causal, bottom right: mode 3, with one compressed mask for all shapes"
        return CannMode(3, "compressed", why)
    if s.acts_like(None, 0):
        why = "causal, top left: mode 2, with one compressed mask for all shapes"
        return CannMode(2, "compressed", why)
    why = "band: mode 4, counted from the bottom right, with one compressed mask for all shapes"
    return CannMode(4, "compressed", why, *tokens(s.low, s.high, d))


def mode_of_sequences(sequences: abc.Sequence[Sequence]) -> CannMode | None:
    """The mode of packed sequences without a full mask, or None if no mode expresses them."""
    active = [s for s in sequences if s.query_len]
    if all(s.acts_like(None, None) for s in active):
        why = "full attention within each sequence: layout TND, mode 0 without a mask"
        return CannMode(0, "none", why)
    last = [s.acts_like(None, s.last_diagonal) for s in active]
    first = [s.acts_like(None, 0) for s in active]
    if all(last):
        why = "each sequence causal, bottom right: mode 3 in layout TND"
        return CannMode(3, "compressed", why)
    if all(first):
        why = "each sequence causal, top left: mode 2 in layout TND"
        return CannMode(2, "compressed", why)
    bands = {tokens(s.low, s.high, s.last_diagonal) for s in active}
    if len(bands) == 1 and min(bands)[0] >= 0:
        why = "the same band, bottom right, in each sequence: mode 4 in layout TND"
        return CannMode(4, "compressed", why, *min(bands))
    final, initial = active[-1], active[0]
    high = final.bounds[1]
    if all(last[:-1]) and final.acts_like(None, high) and high <= final.last_diagonal:
        why = "each sequence causal, bottom right, and the queries of the last one end early: mode 7"
        return CannMode(7, "compressed", why, next_tokens=high - final.last_diagonal)
    high = initial.bounds[1]
    if all(first[1:]) and initial.acts_like(None, high):
        why = "each sequence causal, top left, and the queries of the first one begin late: mode 8"
        return CannMode(8, "compressed", why, next_tokens=high - initial.last_diagonal)
    return None


def tokens(low: int | None, high: int | None, diagonal: int) -> tuple[int, int]:
    """pre_tokens and next_tokens of the band ``i + low <= j <= i + high``, counted from ``diagonal``."""
    return UNBOUNDED if low is None else diagonal - low, UNBOUNDED if high is None else high - diagonal


@dataclass(frozen=True, repr=False)
class SparseMode(Mask):
    """``sparse_mode`` and its arguments. Modes 0, 1 and 5 are intersected with the full mask.

    ``is_band``: whether this is the sequence with a band in mode 7 or 8.
    """

    sparse_mode: int
    pre_tokens: int
    next_tokens: int
    prefix: tuple[int, ...] | None = None
    zero_rows: bool = False
    is_band: bool = False

    def __repr__(self) -> str:
        return f"sparse_mode {self.sparse_mode}"

    @property
    def batch_size(self) -> int | None:
        return None if self.prefix is None else len(self.prefix)

    def of_sequence(self, s: int, query_lens: tuple[int, ...]) -> Mask:
        with_queries = [index for index, length in enumerate(query_lens) if length]
        band = {7: with_queries[-1:], 8: with_queries[:1]}.get(self.sparse_mode)
        prefix = None if self.prefix is None else self.prefix[s : s + 1]
        return replace(self, prefix=prefix, is_band=band == [s])

    def _hidden(self, i, j, query_len, key_len, b):
        return hidden_matrix(
            self.sparse_mode,
            query_len,
            key_len,
            pre_tokens=self.pre_tokens,
            next_tokens=self.next_tokens,
            prefix=None if self.prefix is None else self.prefix[b],
            mask=i != i,  # nothing beyond the mode itself
            is_band=self.is_band,
        )

    def sequence(self, query_len: int, key_len: int, is_band: bool = False) -> Sequence:
        """The band that the mode computes on one sequence, without its prefix."""
        d = key_len - query_len
        pre, next_ = self.pre_tokens, self.next_tokens
        low, high = {
            0: (-pre, next_),
            1: (None, None),
            2: (None, 0),
            4: (d - pre, d + next_),
            8: (None, 0),
        }.get(self.sparse_mode, (None, d))
        if is_band:
            low, high = d - pre, d + next_
        return Sequence(query_len, key_len, low, high)

    def plan(self, parts: tuple[Mask, ...], shapes: Shapes) -> MaskPlan:
        """The plan of the caller's mode."""
        packed = shapes.layout == "TND"
        sequences = ()
        if packed and shapes.query_lens is not None:
            lens = enumerate(zip(shapes.query_lens, shapes.key_lens, strict=True))
            sequences = tuple(
                self.sequence(q, k, self.of_sequence(s, shapes.query_lens).is_band) for s, (q, k) in lens
            )
        elif not packed and shapes.known:
            sequences = (self.sequence(shapes.query_len, shapes.key_len),)
        longest = (
            max((s.query_len for s in sequences), default=0),
            max((s.key_len for s in sequences), default=0),
        )
        full = any(isinstance(part, Dense) for part in parts)
        return MaskPlan(
            packed,
            sequences,
            band=self._band(),
            prefix=self.prefix,
            full=Intersection(parts) if full else None,
            full_shape=longest if full and sequences else None,
            zero_rows=self.zero_rows or (not packed and any(s.has_fully_masked_row for s in sequences)),
            why=f"sparse_mode {self.sparse_mode} of the caller",
        )

    def _band(self) -> Band | None:
        """The band of a sequence of any length, without its prefix."""
        if self.sparse_mode == 1:
            return None
        if self.sparse_mode in (0, 4):
            align = "bottom_right" if self.sparse_mode == 4 else "top_left"
            return Band(self.pre_tokens, self.next_tokens, align)
        return Band(None, 0, "top_left" if self.sparse_mode == 2 else "bottom_right")
