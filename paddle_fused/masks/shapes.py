"""The shapes of a call, in any of the five layouts.

Legend: B batch, S sequence, T tokens of all sequences, N heads, D head size, H = N * D.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .. import contracts
from ..ops.arguments import check_ints
from .intents import OPERATOR

BATCH_AND_SEQUENCE = {
    "BSH": (0, 1),
    "SBH": (1, 0),
    "BSND": (0, 1),
    "BNSD": (0, 2),
}  # the dimensions of batch and sequence


@dataclass(frozen=True)
class Shapes:
    """The sizes of a call that the compiler needs. None: unknown in a static graph."""

    layout: str
    batch: int | None  # 1 in layout TND
    query_len: int | None  # Sq, or the number of tokens in layout TND
    key_len: int | None
    query_lens: tuple[int, ...] | None = None  # layout TND: of each sequence
    key_lens: tuple[int, ...] | None = None
    equal_lens: bool = False  # layout TND: key_lens are query_lens, known or not

    @property
    def known(self) -> bool:
        return None not in (self.batch, self.query_len, self.key_len)


def shapes_of(layout: str, query_shape, key_shape, cu_seqlens_q=None, cu_seqlens_k=None) -> Shapes:
    """The Shapes of a call. Raises ContractError or ValueError for lengths that do not fit the tokens."""
    if layout == "TND":
        query_len, key_len = _known(query_shape[0]), _known(key_shape[0])
        if (cu_seqlens_q is None) != (cu_seqlens_k is None):
            came = "one of cu_seqlens_q and cu_seqlens_k is missing"
            contracts.refuse("attention.lengths_from_0", OPERATOR, came)
        query_lens = _lengths("cu_seqlens_q", cu_seqlens_q, query_len)
        equal = cu_seqlens_q is cu_seqlens_k and cu_seqlens_q is not None
        key_lens = (
            query_lens if equal and query_len == key_len else _lengths("cu_seqlens_k", cu_seqlens_k, key_len)
        )
        if None not in (query_lens, key_lens) and len(query_lens) != len(key_lens):
            came = f"cu_seqlens_q holds {len(query_lens)} sequences and cu_seqlens_k {len(key_lens)}"
            contracts.refuse("attention.lengths_count", OPERATOR, came)
        return Shapes(layout, 1, query_len, key_len, query_lens, key_lens, equal)
    if cu_seqlens_q is not None or cu_seqlens_k is not None:
        raise ValueError(
            f"{OPERATOR}: cu_seqlens_q and cu_seqlens_k belong to layout TND; the layout is {layout}."
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
            f"{OPERATOR}: {name} is {ends}; accepted: cumulative lengths from 0 on (for lengths 3, 2: [0, "
            "3, 5])."
        )
    lengths = tuple(end - start for start, end in pairwise(ends))
    if min(lengths, default=0) < 0:
        contracts.refuse("attention.lengths_order_from_0", OPERATOR, f"{name} is {ends}")
    if tokens is not None and ends[-1] != tokens:
        contracts.refuse("attention.lengths_total", OPERATOR, f"{name} is {ends} for {tokens} tokens")
    return lengths
