"""The shapes of a call in any layout, and its plan: sequences, and the band of unmasked keys per query.

Legend: B batch, S sequence, T tokens of all sequences, N heads, D head size, H = N * D; i counts the queries
and j the keys of one sequence, both from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from .. import contracts
from ..ops.arguments import check_ints
from .types import OPERATOR, Band, Documents, Mask, diagonal

BATCH_AND_SEQUENCE = {
    "BSH": (0, 1),
    "SBH": (1, 0),
    "BSND": (0, 1),
    "BNSD": (0, 2),
}  # the dimensions of batch and sequence


@dataclass(frozen=True)
class Shapes:
    """The sizes of a call for the compiler. None means unknown in a static graph."""

    layout: str
    batch: int | None  # 1 in layout TND
    query_len: int | None  # Sq, or the number of tokens in layout TND
    key_len: int | None
    query_lens: tuple[int, ...] | None = None  # layout TND: the length of each sequence
    key_lens: tuple[int, ...] | None = None
    equal_lens: bool = False  # layout TND: key_lens equal query_lens, even if unknown

    @property
    def known(self) -> bool:
        return None not in (self.batch, self.query_len, self.key_len)


def shapes_of(layout: str, query_shape, key_shape, cu_seqlens_q=None, cu_seqlens_k=None) -> Shapes:
    """The Shapes of a call. Raises ContractError or ValueError for lengths that do not match the tokens."""
    if layout == "TND":
        query_len, key_len = _known(query_shape[0]), _known(key_shape[0])
        if (cu_seqlens_q is None) != (cu_seqlens_k is None):
            received = "one of cu_seqlens_q and cu_seqlens_k is missing"
            contracts.refuse("attention.lengths_from_0", OPERATOR, received)
        query_lens = _lengths("cu_seqlens_q", cu_seqlens_q, query_len)
        equal = cu_seqlens_q is cu_seqlens_k and cu_seqlens_q is not None
        key_lens = (
            query_lens if equal and query_len == key_len else _lengths("cu_seqlens_k", cu_seqlens_k, key_len)
        )
        if None not in (query_lens, key_lens) and len(query_lens) != len(key_lens):
            received = f"cu_seqlens_q has {len(query_lens)} sequences and cu_seqlens_k {len(key_lens)}"
            contracts.refuse("attention.lengths_count", OPERATOR, received)
        return Shapes(layout, 1, query_len, key_len, query_lens, key_lens, equal)
    if cu_seqlens_q is not None or cu_seqlens_k is not None:
        raise ValueError(
            f"{OPERATOR}: cu_seqlens_q and cu_seqlens_k require layout TND; the layout is {layout}."
        )
    batch, sequence = BATCH_AND_SEQUENCE[layout]
    return Shapes(
        layout, _known(query_shape[batch]), _known(query_shape[sequence]), _known(key_shape[sequence])
    )


def _known(size: int) -> int | None:
    return None if size < 0 else int(size)


def _lengths(name: str, cumulative, tokens: int | None) -> tuple[int, ...] | None:
    """[0, 3, 5] -> (3, 2); None for a value of a static graph."""
    if cumulative is None or type(cumulative).__name__ == "Value":
        return None
    ends = list(check_ints(OPERATOR, name, cumulative))
    if not ends or ends[0] != 0:
        raise ValueError(
            f"{OPERATOR}: {name} is {ends}; accepted: cumulative lengths that start at 0 (for lengths 3, 2: "
            "[0, 3, 5])."
        )
    lengths = tuple(end - start for start, end in pairwise(ends))
    if min(lengths, default=0) < 0:
        contracts.refuse("attention.lengths_order_from_0", OPERATOR, f"{name} is {ends}")
    if tokens is not None and ends[-1] != tokens:
        contracts.refuse("attention.lengths_total", OPERATOR, f"{name} is {ends} for {tokens} tokens")
    return lengths


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
        """The key on query 0's diagonal if the last query is aligned with the last key."""
        return self.key_len - self.query_len

    @property
    def bounds(self) -> tuple[int, int]:
        """low and high, clipped to the matrix."""
        narrowest, widest = 1 - self.query_len, self.key_len - 1
        low = narrowest if self.low is None else max(self.low, narrowest)
        return low, widest if self.high is None else min(self.high, widest)

    @property
    def is_empty(self) -> bool:
        """Whether every key is masked."""
        low, high = self.bounds
        return low > high or low >= self.key_len or high <= -self.query_len

    @property
    def has_fully_masked_row(self) -> bool:
        """Whether a row is fully masked. If so, the first or the last row is."""
        low, high = self.bounds
        return self.query_len > 0 and (low > high or high < 0 or self.query_len - 1 + low >= self.key_len)

    def acts_like(self, low: int | None, high: int | None) -> bool:
        """Whether the band ``low``, ``high`` masks the same keys."""
        return self.bounds == replace(self, low=low, high=high).bounds

    def within(self, low: int | None, high: int | None) -> Sequence:
        """The intersection with another band on this sequence."""
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
    """The documents of row ``b``. With ``query_start``, some have only part of their queries, or none."""
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
    """Block-diagonal: each sequence attends only to its own band."""

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


NO_BOUND = 2**40  # in `MaskPlan.bands`: beyond any sequence


@dataclass(frozen=True)
class MaskPlan:
    """The work of a call: its sequences and their bands, plus a full mask if bands cannot express the mask.

    CANN's operator can compute every plan in one call (``modes.mode_of``). The host kernels use the bands.

    Attributes:
        packed: computed as sequences in layout TND (True) or as a batch (False).
        sequences: the sequences of all packed tokens, or of one batch element. Empty if the lengths are
            unknown in a static graph.
        band: the band of every sequence if ``sequences`` is empty. None: nothing is masked.
        prefix: the number of leading keys that are unmasked in addition to the band, for each batch element
            or sequence.
        full, full_shape: the full mask, and the size [Sq, Skv] of its matrix.
        zero_rows: fully masked rows give zeros. If False, the mask must not have such rows. ``check_rows``
            verifies this for masks that depend on the values of a tensor.
        why: the reason for this form, printed by ``explain``. "" stands for the mode's reason.
        fully_masked: bool [B, H, Sq], rows that the plan leaves unmasked and that are zeroed after the call.
        tokens: the index in the batch [B * S] of each packed token, if sequences share tokens.
        own: the index among the packed tokens of each token of the batch.
        constants: tensors that backends cache for later calls with this plan.
    """

    packed: bool
    sequences: tuple[Sequence, ...] = ()
    band: Band | None = None
    prefix: tuple[int, ...] | None = None
    full: Mask | None = None
    full_shape: tuple[int, int] | None = None
    zero_rows: bool = False
    why: str = ""
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

    @cached_property
    def kind(self) -> str:
        """ "no mask", "causal", "band", "prefix" or "full mask"."""
        if self.full is not None:
            return "full mask"
        if self.prefix is not None:
            return "prefix"
        if not self.sequences:
            if self.band is None:
                return "no mask"
            return "causal" if (self.band.left, self.band.right) == (None, 0) else "band"
        active = [s for s in self.sequences if s.query_len]
        if all(s.acts_like(None, None) for s in active):
            return "no mask"
        causal = all(s.acts_like(None, 0) or s.acts_like(None, s.last_diagonal) for s in active)
        return "causal" if causal else "band"

    @property
    def align(self) -> str:
        """The diagonal from which ``bands`` are counted."""
        return "top_left" if self.sequences or self.band is None else self.band.align

    @cached_property
    def bands(self) -> tuple[tuple[int, int, int], ...]:
        """low, high and prefix of each batch element or sequence; a single entry if all are equal.

        Query i attends to the keys ``i + low <= j <= i + high``, counted from the diagonal of ``align``, and
        to the keys ``j < prefix``.
        """
        if self.sequences:
            bounds = [(s.low, s.high) for s in self.sequences]
        else:
            left, right = (None, None) if self.band is None else (self.band.left, self.band.right)
            bounds = [(None if left is None else -left, right)]
        prefix = self.prefix or (0,)
        count = max(len(bounds), len(prefix))
        bounds, prefix = (x * count if len(x) == 1 else x for x in (bounds, prefix))
        bands = tuple(
            (-NO_BOUND if low is None else low, NO_BOUND if high is None else high, length)
            for (low, high), length in zip(bounds, prefix, strict=True)
        )
        return bands[:1] if len(set(bands)) == 1 else bands
