"""Attention's masks: their shapes, sparse modes, bands and prefixes.

Legend: B batch, N heads, Sq queries, Skv keys; i counts queries.
"""

from paddle_fused.contracts.rule import INNER_TILING, PARAM_INVALID, ContractRule, listed

from .contract import (
    BUT_PLUGIN,
    DENSE,
    FUSION,
    MASK_TYPES,
    NOT_MASK_TYPES,
    SCORE_DOC,
    TILING_SOURCE,
    VARLEN,
    VARLEN_BUT_PLUGIN,
    VARLEN_DOC,
    VARLEN_FUSION,
)

LIMITS = {
    "attention.compressed_mask": 2048,  # rows and columns of the mask in modes 2, 3, 4, 7 and 8
    "attention.compressed_prefix_mask_rows": 3072,
}
DTYPES = {"attention.mask_dtype": ("bool", "uint8")}

DENSE_MODES = (0, 1, 2, 3, 4, 5, 6)
VARLEN_MODES = (0, 1, 2, 3, 4, 6, 7, 8)
COMPRESSED_MODES = (2, 3, 4, 7, 8)

_C = LIMITS["attention.compressed_mask"]
_CP = LIMITS["attention.compressed_prefix_mask_rows"]
_SPARSE = "hicann/ops-nn docs/zh/context/sparse_mode_introduction.md"

RULES = (
    # ---- masks
    ContractRule(
        "attention.mask_dtype",
        FUSION,
        PARAM_INVALID,
        listed(DTYPES["attention.mask_dtype"]) + ", where True or 1 means masked",
        "For an additive mask, pass (mask != 0).",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.mask_shape",
        DENSE,
        INNER_TILING,
        "[B, N, Sq, Skv], [B, 1, Sq, Skv], [1, 1, Sq, Skv] or [Sq, Skv]",
        "Expand it, because the last two dimensions are not broadcast.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mask_shape_varlen",
        VARLEN,
        INNER_TILING,
        "[longest Sq, longest Skv], one mask for all sequences",
        "Slice or pad it.",
        VARLEN_DOC,
    ),
    ContractRule(
        "attention.mask_shape_compressed",
        FUSION,
        INNER_TILING,
        f"[{_C}, {_C}] for sparse modes {listed(COMPRESSED_MODES)}",
        "Pass a mask that is True above the diagonal.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mask_shape_prefix",
        FUSION,
        INNER_TILING,
        "[B, N, Sq, Skv] or [B, 1, Sq, Skv] for sparse mode 5",
        "Expand the mask to the batch size, or use mode 6.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mask_shape_prefix_compressed",
        FUSION,
        INNER_TILING,
        f"[{_CP}, {_C}] for sparse mode 6",
        f"Pass {_C} rows that are True above the diagonal, then {_CP - _C} rows whose right half is True.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mask_missing",
        FUSION,
        None,
        "sparse modes 1 to 8 with a mask, mode 0 without one",
        "Without a mask, a card ignores the mode and masks nothing.",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.dense_mode",
        FUSION,
        INNER_TILING,
        f"sparse modes {listed(DENSE_MODES)} for layouts BSH, SBH, BSND and BNSD",
        "Modes 7 and 8 require layout TND.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.varlen_mode",
        VARLEN_FUSION,
        INNER_TILING,
        f"sparse modes {listed(VARLEN_MODES)} for layout TND",
        "Use mode 6 instead of 5; its mask is compressed.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.band_top_left",
        FUSION,
        INNER_TILING,
        "in mode 0, a non-empty band: pre_tokens + next_tokens >= 0, pre_tokens > -Skv and next_tokens > -Sq",
        "Query i attends to keys i - pre_tokens to i + next_tokens.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.band_bottom_right",
        BUT_PLUGIN,
        INNER_TILING,
        "in mode 4, a non-empty band: pre_tokens + next_tokens >= 0, pre_tokens > -Sq and next_tokens > -Skv",
        "Query i attends to keys i + Skv - Sq - pre_tokens to i + Skv - Sq + next_tokens.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.hidden_rows",
        NOT_MASK_TYPES,
        None,
        "an unmasked key for every query, or inner_precise 2 in layouts other than TND",
        "A card computes wrong results for fully masked rows.",
        VARLEN_DOC,
    ),
    ContractRule(
        "attention.hidden_rows_of_intents",
        MASK_TYPES,
        None,
        "an unmasked key for every query, or masks.dense(hidden, invalid_rows=True) outside layout TND",
        "invalid_rows gives zeros for fully masked rows; a card computes wrong results for them.",
        VARLEN_DOC,
    ),
    # ---- prefix
    ContractRule(
        "attention.prefix",
        FUSION,
        INNER_TILING,
        "one prefix length per batch element for sparse modes 5 and 6",
        "Pass prefix as a list of lengths.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.prefix_range",
        BUT_PLUGIN,
        INNER_TILING,
        "a prefix length from 0 to Skv if Sq > Skv, otherwise from Skv - Sq to Skv",
        "Clip the lengths.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.prefix_varlen",
        ("flash_attention",),
        INNER_TILING,
        "a prefix in layouts BSH, SBH, BSND and BNSD",
        "CANN has no such prefix mode for layout TND; use a batch with one sequence per element.",
        _SPARSE,
    ),
    # ---- modes of packed sequences
    ContractRule(
        "attention.mode3_varlen",
        VARLEN_BUT_PLUGIN,
        INNER_TILING,
        "in mode 3 and layout TND, no sequence with more queries than keys",
        "Its first rows would be fully masked; use mode 2, or remove these queries.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mode7_last",
        VARLEN_FUSION,
        INNER_TILING,
        "in mode 7, a band on the last non-empty sequence with pre_tokens >= Skv and "
        "Sq - Skv <= next_tokens <= 0",
        "Compute both from the position at which the sequence was split.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mode7_others",
        VARLEN_FUSION,
        INNER_TILING,
        "in mode 7, no more queries than keys in any sequence except the last",
        "Only the last sequence may be split.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mode8_first",
        VARLEN_FUSION,
        INNER_TILING,
        "in mode 8, a band on the first non-empty sequence with pre_tokens >= Skv and "
        "next_tokens >= Sq - Skv",
        "Compute both from the position at which the sequence was split.",
        TILING_SOURCE,
    ),
)
