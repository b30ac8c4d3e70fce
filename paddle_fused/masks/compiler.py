"""Compiles a mask to the bands of a call's sequences, plus a full mask for masks that are not bands.

A plan is limited to masks that one CANN sparse mode can express, so the host and the card compute the same
result. The plugin's operator takes no mode: `ops/attention/ascend.py` passes it row indices or a mask.
Modes 2, 3, 4, 6, 7 and 8, with compressed masks, are used at every size. The CANN documentation prefers
mode 0 for masks below 2048 x 2048 to save memory. However, one compressed mask on the device serves calls of
all shapes, while mode 0 needs a mask for every shape. (MindSpeed switches at 2048.)

Legend: B batch, Sq queries, Skv keys, d = Skv - Sq; i counts queries and j keys.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .. import contracts
from .modes import SparseMode
from .row_indices import RowIndices
from .rows_compiler import meaning_of
from .sequences import MaskPlan, Sequence, Shapes, document_sequences
from .types import OPERATOR, Band, Dense, Documents, Intersection, Mask, Prefix
from .varlen import compile_varlen, packed_plan, unknown_lengths


def compile_mask(mask: Mask | None, shapes: Shapes, may_pack: bool = True) -> MaskPlan:
    """The plan for ``mask`` on these shapes. ``may_pack`` allows packing a batch into sequences.

    Raises ContractError if CANN would reject the mask or compute it incorrectly. Raises ValueError if the
    mask was created for other shapes, or if it depends on lengths that are unknown in a static graph.
    """
    parts = () if mask is None else mask.parts
    if any(isinstance(part, Dense) for part in parts):
        return _compile(parts, shapes, may_pack)  # caching would keep the tensor alive
    if any(isinstance(part, RowIndices) for part in parts):
        return _compile_rows(parts, shapes, may_pack)
    return _compile_cached(parts, shapes, may_pack)


def _compile(parts: tuple[Mask, ...], shapes: Shapes, may_pack: bool) -> MaskPlan:
    for part in parts:
        if isinstance(part, SparseMode):
            return part.plan(parts, shapes)
    for part in parts:
        if shapes.batch is not None and part.batch_size not in (None, shapes.batch):
            raise ValueError(
                f"{part!r} was created for a batch of {part.batch_size}; "
                f"the tensors have a batch of {shapes.batch}."
            )
        if isinstance(part, Dense):
            _check_tensor(part, shapes)
    rows = [part for part in parts if isinstance(part, RowIndices)]
    if rows:
        return _rows_plan(rows[0], parts, shapes, may_pack)
    if shapes.layout == "TND":
        return compile_varlen(parts, shapes)
    return _compile_batch(parts, shapes, may_pack)


def _check_tensor(dense: Dense, shapes: Shapes) -> None:
    """Raises ContractError if the tensor's shape is not valid for a mask of this call."""
    shape = list(dense.hidden.shape)
    if shapes.layout != "TND":
        expected = shapes.query_len, shapes.key_len
        if any(a != b and b is not None and a != -1 for a, b in zip(shape[-2:], expected, strict=True)):
            received = f"{dense!r} is used for {shapes.query_len} queries and {shapes.key_len} keys"
            contracts.refuse("attention.mask_shape", OPERATOR, received)
    elif None not in (shapes.query_lens, shapes.key_lens):
        longest = [max(shapes.query_lens, default=0), max(shapes.key_lens, default=0)]
        if shape != longest:
            received = f"{dense!r} is used for a longest Sq of {longest[0]} and a longest Skv of {longest[1]}"
            contracts.refuse("attention.mask_shape_varlen", OPERATOR, received)


_compile_cached = lru_cache(maxsize=1024)(_compile)
_compile_rows = lru_cache(maxsize=16)(_compile)  # small: each entry is O(S), and every batch has new rows


def _compile_batch(parts, shapes, may_pack) -> MaskPlan:
    bands = [part for part in parts if isinstance(part, Band)]
    others = [part for part in parts if not isinstance(part, Band)]
    if not shapes.known:
        return unknown_lengths(bands, others, packed=False)
    sequence = Sequence(shapes.query_len, shapes.key_len)
    for band in bands:
        sequence = sequence.within_band(band, shapes.query_len, shapes.key_len)
    if shapes.query_len and shapes.key_len and sequence.is_empty:
        sizes = f"{shapes.query_len} queries and {shapes.key_len} keys"
        received = f"{Intersection(tuple(bands))!r} masks every score of {sizes}"
        contracts.refuse("attention.band_bottom_right", OPERATOR, received)
    if not others:
        return MaskPlan(False, (sequence,), zero_rows=sequence.has_fully_masked_row)
    if not bands and len(others) == 1 and isinstance(others[0], Prefix):
        return _prefix_plan(others[0], shapes)
    if may_pack and len(others) == 1 and isinstance(others[0], Documents):
        packed = _documents_plan(others[0], bands, shapes)
        if packed is not None:
            return packed
    return _full_plan(parts, sequence, shapes)


def _prefix_lengths(prefix: Prefix, shapes) -> tuple[int, ...]:
    lengths = prefix.lengths * (shapes.batch if prefix.batch_size is None else 1)
    if max(lengths, default=0) > shapes.key_len:
        contracts.refuse("attention.prefix_range", OPERATOR, f"{prefix!r} with {shapes.key_len} keys")
    # The first Skv - Sq keys are always unmasked, and CANN requires the prefix to include them.
    return tuple(max(length, shapes.key_len - shapes.query_len) for length in lengths)


def _prefix_plan(prefix: Prefix, shapes) -> MaskPlan:
    s = Sequence(shapes.query_len, shapes.key_len, None, shapes.key_len - shapes.query_len)
    lengths = _prefix_lengths(prefix, shapes)
    return MaskPlan(False, (s,), prefix=lengths, zero_rows=s.has_fully_masked_row and 0 in lengths)


def _documents_plan(documents: Documents, bands, shapes) -> MaskPlan | None:
    """The plan that packs all rows into one batch, or None if no TND mode can express the documents."""
    sequences, query_len, key_len = [], shapes.query_len, shapes.key_len
    for b in range(shapes.batch):
        row = document_sequences(documents, 0 if documents.batch_size is None else b, query_len, key_len)
        for band in bands:
            row = [s.within_band(band, query_len, key_len) for s in row]
        sequences += row
    if not 0 < len(sequences) <= contracts.limit("attention.sequences"):
        return None
    return packed_plan(sequences)


def _rows_plan(mask: RowIndices, parts, shapes, may_pack) -> MaskPlan:
    if shapes.layout == "TND" or not shapes.known:
        raise ValueError(
            f"{mask!r} in layout {shapes.layout} for {shapes.query_len} queries and {shapes.key_len} keys; "
            "accepted: layouts BSND, BNSD, BSH and SBH with known lengths. In a captured program, pass the "
            "indices to paddle_fused.flashmask_attention."
        )
    query_len, key_len = shapes.query_len, shapes.key_len
    causal = Band(None, 0, "bottom_right")
    meaning = meaning_of(mask, query_len, key_len)
    if all(part is mask or (mask.causal and part == causal) for part in parts):
        count = meaning.count_sequences(shapes.batch)
        fits = count == 0 or (may_pack and count <= contracts.limit("attention.sequences"))
        if meaning.parts is not None and fits:
            return replace(_compile_batch(meaning.parts, shapes, may_pack), fully_masked=meaning.fully_masked)
        if meaning.sequences and fits:
            why = "shared questions are copied for each answer: mode 3 in layout TND"
            plan = packed_plan(list(meaning.sequences))
            return replace(
                plan, why=why, fully_masked=meaning.fully_masked, tokens=meaning.tokens, own=meaning.own
            )
        s = Sequence(query_len, key_len, None, key_len - query_len if mask.causal else None)
        return replace(
            _full_plan((mask,), s, shapes, True), zero_rows=False, fully_masked=meaning.fully_masked
        )
    return _full_plan(parts, Sequence(query_len, key_len), shapes, True)


def _full_plan(parts, s: Sequence, shapes, zero_rows: bool = False) -> MaskPlan:
    full = Intersection(parts)
    prefixes = [part for part in parts if isinstance(part, Prefix)]
    has_tensor = any(isinstance(part, Dense) for part in parts)
    shape = shapes.query_len, shapes.key_len
    zero_rows |= s.has_fully_masked_row or any(getattr(part, "invalid_rows", False) for part in parts)
    if not has_tensor and not zero_rows and full.to_dense(*shape).all(-1).any():
        contracts.refuse("attention.hidden_rows_of_intents", OPERATOR, f"{full!r} has fully masked rows")
    plan = MaskPlan(False, (s,), full=full, full_shape=shape, zero_rows=zero_rows)
    if s.acts_like(None, None) and len(prefixes) == 1:
        inside = s.within(None, s.last_diagonal)
        return replace(plan, sequences=(inside,), prefix=_prefix_lengths(prefixes[0], shapes))
    return plan
