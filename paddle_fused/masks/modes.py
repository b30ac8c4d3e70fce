"""CANN's sparse modes: names, mask tensors, meaning as dense matrices, and the plan that names one.

A mask becomes one of these modes in ``compiler``; `SparseMode` is a mode that the caller chose.

Legend: Sq queries, Skv keys, i counts queries and j keys, d = Skv - Sq. Source: ops-transformer
docs/zh/context/sparse_mode_introduction.md.
"""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field, replace

import numpy as np

from .. import contracts
from .sequences import Sequence, Shapes
from .types import Dense, Intersection, Mask

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
COMPRESSED = {
    m: "compressed_prefix" if m == 6 else "compressed" for m in (2, 3, 4, 6, 7, 8)
}  # SparsePlan.mask
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
    """What a mode hides (True = hidden): bool [Sq, Skv], or the shape of ``mask`` in modes 0, 1 and 5.

    ``prefix``: the length of this batch element. ``is_band``: in mode 7 or 8, this is the sequence with a
    band. Mode 0 without a mask hides nothing: CANN then ignores pre_tokens and next_tokens.
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


@dataclass(frozen=True)
class SparsePlan:
    """The arguments of CANN's operator that express the mask of one call.

    Attributes:
        packed: computed as sequences in layout TND; False: as a batch.
        why: the reason for this mode, which ``explain`` prints.
        mask: "none", "compressed", "compressed_prefix" or "full".
        full, full_shape: the full mask, and the size [Sq, Skv] of its matrix.
        zero_rows: fully masked rows give zeros. If False, the mask must not have such rows; ``check_rows``
            checks this if it depends on the values of a tensor.
        sequences: the computed sequences of all packed tokens, or of one batch element.
        fully_masked: bool [B, H, Sq], queries to zero after the call, because this mode shows them a key.
        tokens: the index in the batch [B * S] of each packed token, if sequences share tokens.
        own: the index among the packed tokens of each token of the batch.
        constants: tensors that backends keep for the next call with this plan.
    """

    packed: bool
    sparse_mode: int
    why: str
    mask: str = "none"
    pre_tokens: int = UNBOUNDED
    next_tokens: int = UNBOUNDED
    prefix: tuple[int, ...] | None = None
    full: Mask | None = None
    full_shape: tuple[int, int] | None = None
    zero_rows: bool = False
    sequences: tuple[Sequence, ...] = ()
    fully_masked: np.ndarray | None = field(default=None, compare=False)
    tokens: np.ndarray | None = field(default=None, compare=False)
    own: np.ndarray | None = field(default=None, compare=False)
    constants: dict = field(default_factory=dict, compare=False, repr=False)

    @property
    def query_lens(self) -> tuple[int, ...]:
        return tuple(s.query_len for s in self.sequences)

    @property
    def key_lens(self) -> tuple[int, ...]:
        return tuple(s.key_len for s in self.sequences)


def tokens(low: int | None, high: int | None, diagonal: int) -> tuple[int, int]:
    """pre_tokens and next_tokens of the band ``i + low <= j <= i + high``, counted from ``diagonal``."""
    return UNBOUNDED if low is None else diagonal - low, UNBOUNDED if high is None else high - diagonal


@dataclass(frozen=True, repr=False)
class SparseMode(Mask):
    """``sparse_mode`` and its arguments. In modes 0, 1 and 5 it is intersected with the full mask.

    ``is_band``: in modes 7 and 8, this is the sequence with a band.
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
            mask=i != i,  # only what the mode itself hides
            is_band=self.is_band,
        )

    def sequence(self, query_len: int, key_len: int, is_band: bool = False) -> Sequence:
        """The band that the mode computes on one sequence, ignoring its prefix."""
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

    def plan(self, parts: tuple[Mask, ...], shapes: Shapes) -> SparsePlan:
        """The plan with the caller's mode."""
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
        return SparsePlan(
            packed,
            self.sparse_mode,
            "the caller's mode",
            "full" if full else COMPRESSED[self.sparse_mode],
            self.pre_tokens,
            self.next_tokens,
            self.prefix,
            Intersection(parts) if full else None,
            longest if sequences else None,
            self.zero_rows or (not packed and any(s.has_fully_masked_row for s in sequences)),
            sequences,
        )
