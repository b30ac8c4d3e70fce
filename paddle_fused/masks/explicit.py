"""A mask from a sparse mode that the caller chose, for code written against CANN's own arguments.

Legend: Sq queries and Skv keys of one sequence; i counts queries and j keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .intents import Dense, Intersection, Mask
from .modes import COMPRESSED, hidden_matrix
from .plan import SparsePlan
from .sequences import Sequence
from .shapes import Shapes


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
            self.zero_rows or (not packed and any(s.has_blind_query for s in sequences)),
            sequences,
        )
