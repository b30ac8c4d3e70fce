"""The compiler for layout TND (sequences of different lengths), and plans for unknown lengths.

A card does not allow queries that see no key in this layout. `unknown_lengths` also serves batches: it plans
for a static graph that does not know the sequence lengths.

Legend: Sq queries and Skv keys of one sequence, d = Skv - Sq.
"""

from __future__ import annotations

from .. import contracts
from .modes import UNBOUNDED, SparsePlan, tokens
from .sequences import Blocks, Sequence, Shapes, document_sequences
from .types import OPERATOR, Band, Dense, Documents, Intersection, Mask, Prefix


def compile_varlen(parts: tuple[Mask, ...], shapes: Shapes) -> SparsePlan:
    bands = [part for part in parts if isinstance(part, Band)]
    others = [part for part in parts if not isinstance(part, Band)]
    if any(isinstance(part, Prefix) for part in others):
        contracts.refuse("attention.prefix_varlen", OPERATOR, f"{Intersection(parts)!r} in layout TND")
    if any(isinstance(part, Documents) for part in others):
        sequences = _documents(bands, others, shapes)
        others = []
    elif shapes.query_lens is None or shapes.key_lens is None:
        if not shapes.equal_lens and (bands or others):
            raise ValueError(
                f"{Intersection(parts)!r} in layout TND needs lengths that a static graph knows, as lists of "
                "ints; or pass one tensor as cu_seqlens_q and cu_seqlens_k."
            )
        return unknown_lengths(bands, others, packed=True)
    else:
        sequences = _sequences(bands, shapes)
    plan = packed_plan(sequences, others)
    if plan is not None:
        return plan
    if others:
        raise ValueError(
            f"{Intersection(parts)!r} in layout TND: all sequences share the tensor [longest Sq, longest "
            "Skv], but the bands differ from sequence to sequence. Use bands aligned to the top left, or one "
            "call for each sequence."
        )
    why = "no mode of layout TND says it: one batch element with a full block-diagonal mask"
    shape = shapes.query_len, shapes.key_len
    return SparsePlan(
        False, 1, why, "full", full=Blocks(tuple(sequences)), full_shape=shape, sequences=(Sequence(*shape),)
    )


def _documents(bands, others, shapes) -> list[Sequence]:
    documents = others[0]
    if len(others) > 1 or shapes.query_lens is not None or len(documents.rows) > 1:
        raise ValueError(
            f"{Intersection((*bands, *others))!r} in layout TND: accepted is one documents(...) with one "
            "list of lengths, intersected with bands only, without cu_seqlens_q and cu_seqlens_k, which "
            "say the same."
        )
    sequences = document_sequences(documents, 0, shapes.query_len, shapes.key_len)
    for band in bands:
        sequences = [s.within_band(band, shapes.query_len, shapes.key_len) for s in sequences]
    return sequences


def _sequences(bands, shapes) -> list[Sequence]:
    sequences, query_offset, key_offset = [], 0, 0
    for query_len, key_len in zip(shapes.query_lens, shapes.key_lens, strict=True):
        s = Sequence(query_len, key_len)
        for band in bands:
            s = s.within_band(band, query_len, key_len)
        sequences.append(Sequence(query_len, key_len, s.low, s.high, query_offset, key_offset))
        query_offset, key_offset = query_offset + query_len, key_offset + key_len
    return sequences


def packed_plan(sequences: list[Sequence], tensors: list[Dense] | None = None) -> SparsePlan | None:
    """The plan of these sequences in layout TND, or None if no mode expresses them."""
    active = [s for s in sequences if s.query_len]
    _check_queries(active)
    common = {"packed": True, "sequences": tuple(sequences)}
    if tensors:
        return _shared_mask_plan(active, tensors, common)
    if all(s.acts_like(None, None) for s in active):
        why = "sequences see themselves whole: layout TND without a mask, which CANN takes in mode 0"
        return SparsePlan(sparse_mode=0, why=why, **common)
    last = [s.acts_like(None, s.last_diagonal) for s in active]
    first = [s.acts_like(None, 0) for s in active]
    common["mask"] = "compressed"
    if all(last):
        return SparsePlan(
            sparse_mode=3,
            why="causal from the bottom right of every sequence is mode 3 in layout TND",
            **common,
        )
    if all(first):
        return SparsePlan(
            sparse_mode=2, why="causal from the top left of every sequence is mode 2 in layout TND", **common
        )
    bands = {tokens(s.low, s.high, s.last_diagonal) for s in active}
    if len(bands) == 1 and min(bands)[0] >= 0:
        pre, next_ = min(bands)
        why = "one band from the bottom right of every sequence is mode 4 in layout TND"
        return SparsePlan(sparse_mode=4, pre_tokens=pre, next_tokens=next_, why=why, **common)
    final, initial = active[-1], active[0]
    high = final.bounds[1]
    if all(last[:-1]) and final.acts_like(None, high) and high <= final.last_diagonal:
        next_ = high - final.last_diagonal
        why = "causal from the bottom right, but for the last sequence, whose queries end early: mode 7"
        return SparsePlan(sparse_mode=7, next_tokens=next_, why=why, **common)
    high = initial.bounds[1]
    if all(first[1:]) and initial.acts_like(None, high):
        next_ = high - initial.last_diagonal
        why = "causal from the top left, but for the first sequence, whose queries begin late: mode 8"
        return SparsePlan(sparse_mode=8, next_tokens=next_, why=why, **common)
    common.pop("mask")
    return _shared_mask_plan(active, [], common)


def _check_queries(active: list[Sequence]) -> None:
    for s in active:
        lengths = f"a sequence with {s.query_len} queries and {s.key_len} keys"
        if s.key_len == 0:
            contracts.refuse("attention.no_keys", OPERATOR, lengths)
        if s.has_fully_masked_row and s.low is None and s.high == s.last_diagonal:
            contracts.refuse("attention.mode3_varlen", OPERATOR, f"{lengths}, causal from the bottom right")
        if s.has_fully_masked_row:
            came = f"{lengths} and the band {s.low} <= j - i <= {s.high} leaves queries that see no key"
            contracts.refuse("attention.hidden_rows_of_intents", OPERATOR, came)


def _shared_mask_plan(active, tensors, common) -> SparsePlan | None:
    """Mode 0 or 1: one mask [longest Sq, longest Skv], aligned at the top left of every sequence."""
    bands = {(s.low, s.high) for s in active}
    if len(bands) > 1:
        return None
    low, high = min(bands, default=(None, None))
    shape = (
        max((s.query_len for s in active), default=0),
        max((s.key_len for s in common["sequences"]), default=0),
    )
    band = Band(None if low is None else -low, high, "top_left")
    full = Intersection((band, *tensors))
    common = {**common, "mask": "full", "full": full, "full_shape": shape}
    if (low, high) == (None, None):
        return SparsePlan(
            sparse_mode=1, why="one full mask for all sequences, every block is computed", **common
        )
    pre, next_ = tokens(low, high, 0)
    why = "one full mask for all sequences inside a band from the top left is mode 0, which computes the band"
    return SparsePlan(sparse_mode=0, pre_tokens=pre, next_tokens=next_, why=why, **common)


def unknown_lengths(bands: list[Band], others: list[Mask], packed: bool) -> SparsePlan:
    """The plan of a mask that does not depend on the lengths. Raises ValueError for one that does."""
    if not bands and not others:
        return SparsePlan(packed, 0, "no mask")
    if not bands and len(others) == 1 and isinstance(others[0], Dense):
        dense = others[0]
        return SparsePlan(packed, 1, "a mask of its own", "full", full=dense, zero_rows=not packed)
    aligns = {band.align for band in bands}
    if not others and len(aligns) == 1:
        left = min((b.left for b in bands if b.left is not None), default=None)
        right = min((b.right for b in bands if b.right is not None), default=None)
        bottom_right = aligns == {"bottom_right"}
        if (left, right) == (None, 0):
            return SparsePlan(packed, 3 if bottom_right else 2, "causal, whatever the lengths", "compressed")
        if bottom_right:
            pre, next_ = (UNBOUNDED if bound is None else bound for bound in (left, right))
            return SparsePlan(packed, 4, "a band, whatever the lengths", "compressed", pre, next_)
    raise ValueError(
        f"{Intersection((*bands, *others))!r} needs the sequence lengths, which this static graph does not "
        "know: give them in the InputSpec."
    )
