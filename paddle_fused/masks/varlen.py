"""The mask compiler for layout TND (sequences of different lengths), and plans for unknown lengths.

A card does not support fully masked rows in this layout. `unknown_lengths` also handles batches: it plans
for a static graph with unknown sequence lengths.

Legend: Sq queries and Skv keys of one sequence, d = Skv - Sq.
"""

from __future__ import annotations

from .. import contracts
from .modes import mode_of_sequences
from .sequences import Blocks, MaskPlan, Sequence, Shapes, document_sequences
from .types import OPERATOR, Band, Dense, Documents, Intersection, Mask, Prefix


def compile_varlen(parts: tuple[Mask, ...], shapes: Shapes) -> MaskPlan:
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
                f"{Intersection(parts)!r} in layout TND requires lengths that are known in a static graph. "
                "Pass lists of ints, or one tensor as both cu_seqlens_q and cu_seqlens_k."
            )
        return unknown_lengths(bands, others, packed=True)
    else:
        sequences = _sequences(bands, shapes)
    plan = packed_plan(sequences, others)
    if plan is not None:
        return plan
    if others:
        raise ValueError(
            f"{Intersection(parts)!r} in layout TND: all sequences share one mask tensor [longest Sq, "
            "longest Skv], but their bands differ. Use bands aligned to the top left, or one call per "
            "sequence."
        )
    why = "no TND mode expresses it: one batch element with a full block-diagonal mask"
    shape = shapes.query_len, shapes.key_len
    return MaskPlan(False, (Sequence(*shape),), full=Blocks(tuple(sequences)), full_shape=shape, why=why)


def _documents(bands, others, shapes) -> list[Sequence]:
    documents = others[0]
    if len(others) > 1 or shapes.query_lens is not None or len(documents.rows) > 1:
        raise ValueError(
            f"{Intersection((*bands, *others))!r} in layout TND; accepted: one documents(...) with one list "
            "of lengths, intersected with bands only. Omit cu_seqlens_q and cu_seqlens_k, because documents "
            "already define the lengths."
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


def packed_plan(sequences: list[Sequence], tensors: list[Dense] | None = None) -> MaskPlan | None:
    """The plan for these sequences in layout TND, or None if no mode can express them."""
    active = [s for s in sequences if s.query_len]
    _check_queries(active)
    if tensors:
        return _shared_mask_plan(active, tensors, sequences)
    if mode_of_sequences(sequences) is None:
        return _shared_mask_plan(active, [], sequences)
    return MaskPlan(True, tuple(sequences))


def _check_queries(active: list[Sequence]) -> None:
    for s in active:
        lengths = f"a sequence with {s.query_len} queries and {s.key_len} keys"
        if s.key_len == 0:
            contracts.refuse("attention.no_keys", OPERATOR, lengths)
        if s.has_fully_masked_row and s.low is None and s.high == s.last_diagonal:
            contracts.refuse("attention.mode3_varlen", OPERATOR, f"{lengths}, causal from the bottom right")
        if s.has_fully_masked_row:
            received = f"{lengths} has fully masked rows in the band {s.low} <= j - i <= {s.high}"
            contracts.refuse("attention.hidden_rows_of_intents", OPERATOR, received)


def _shared_mask_plan(active, tensors, sequences) -> MaskPlan | None:
    """One mask [longest Sq, longest Skv], aligned at the top left of every sequence."""
    bands = {(s.low, s.high) for s in active}
    if len(bands) > 1:
        return None
    low, high = min(bands, default=(None, None))
    shape = (
        max((s.query_len for s in active), default=0),
        max((s.key_len for s in sequences), default=0),
    )
    band = Band(None if low is None else -low, high, "top_left")
    return MaskPlan(True, tuple(sequences), full=Intersection((band, *tensors)), full_shape=shape)


def unknown_lengths(bands: list[Band], others: list[Mask], packed: bool) -> MaskPlan:
    """The plan for a mask that does not depend on lengths. Raises ValueError for any other mask."""
    if not bands and not others:
        return MaskPlan(packed)
    if not bands and len(others) == 1 and isinstance(others[0], Dense):
        return MaskPlan(packed, full=others[0], zero_rows=not packed)
    aligns = {band.align for band in bands}
    if not others and len(aligns) == 1:
        left = min((b.left for b in bands if b.left is not None), default=None)
        right = min((b.right for b in bands if b.right is not None), default=None)
        if (left, right) == (None, 0) or aligns == {"bottom_right"}:  # no mode counts from the top left
            return MaskPlan(packed, band=Band(left, right, *aligns))
    raise ValueError(
        f"{Intersection((*bands, *others))!r} depends on the sequence lengths, which are dynamic in this "
        "static graph. Specify them in the InputSpec."
    )
