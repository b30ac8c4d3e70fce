"""Attention's masks: their shapes, sparse modes, bands and prefixes.

Legend: B batch, N heads, S sequence length; q and kv: of query, of key and value; i a query's position.
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
    "attention.compressed_mask": 2048,  # rows and columns of the mask of modes 2, 3, 4, 7 and 8
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
        listed(DTYPES["attention.mask_dtype"]) + ", where True or 1 hides a key",
        "For an additive mask pass (mask != 0).",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.mask_shape",
        DENSE,
        INNER_TILING,
        "[B, N, Sq, Skv], [B, 1, Sq, Skv], [1, 1, Sq, Skv] or [Sq, Skv]",
        "Expand it: the mask's last two dimensions are not broadcast.",
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
        "Pass the triangle that is True above the diagonal.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mask_shape_prefix",
        FUSION,
        INNER_TILING,
        "[B, N, Sq, Skv] or [B, 1, Sq, Skv] for sparse mode 5",
        "Expand the mask to one for each batch element, or use mode 6.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mask_shape_prefix_compressed",
        FUSION,
        INNER_TILING,
        f"[{_CP}, {_C}] for sparse mode 6",
        f"Pass the {_C} rows of the triangle, then {_CP - _C} rows whose left half is False.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mask_missing",
        FUSION,
        None,
        "sparse modes 1 to 8 with their mask, 0 without one",
        "Without a mask a card ignores the mode and every query sees every key.",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.dense_mode",
        FUSION,
        INNER_TILING,
        f"sparse modes {listed(DENSE_MODES)} for layouts BSH, SBH, BSND and BNSD",
        "Modes 7 and 8 are for parts of packed sequences.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.varlen_mode",
        VARLEN_FUSION,
        INNER_TILING,
        f"sparse modes {listed(VARLEN_MODES)} for layout TND",
        "Use mode 6 instead of 5: its mask is compressed.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.band_top_left",
        FUSION,
        INNER_TILING,
        "in mode 0 a band with keys in it: pre_tokens + next_tokens >= 0, pre_tokens > -Skv and "
        "next_tokens > -Sq",
        "The band runs from i - pre_tokens to i + next_tokens around the diagonal from the top left.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.band_bottom_right",
        BUT_PLUGIN,
        INNER_TILING,
        "in mode 4 a band with keys in it: pre_tokens + next_tokens >= 0, pre_tokens > -Sq and "
        "next_tokens > -Skv",
        "The band runs from i + Skv - Sq - pre_tokens to i + Skv - Sq + next_tokens.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.hidden_rows",
        NOT_MASK_TYPES,
        None,
        "a visible key for every query, or inner_precise 2 in layouts other than TND",
        "A card gives wrong numbers in rows whose keys are all hidden.",
        VARLEN_DOC,
    ),
    ContractRule(
        "attention.hidden_rows_of_intents",
        MASK_TYPES,
        None,
        "a visible key for every query, or masks.dense(hidden, invalid_rows=True) in layouts other than TND",
        "With invalid_rows such queries get zeros; a card gives wrong numbers there.",
        VARLEN_DOC,
    ),
    # ---- prefix
    ContractRule(
        "attention.prefix",
        FUSION,
        INNER_TILING,
        "for sparse modes 5 and 6 one prefix length for each batch element",
        "Pass prefix as a list of lengths.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.prefix_range",
        BUT_PLUGIN,
        INNER_TILING,
        "a prefix length from 0 to Skv where Sq > Skv, from Skv - Sq to Skv elsewhere",
        "Clip the lengths.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.prefix_varlen",
        ("flash_attention",),
        INNER_TILING,
        "a prefix in layouts BSH, SBH, BSND and BNSD",
        "CANN has no prefix mode with a full mask for layout TND: make each sequence an element of a batch.",
        _SPARSE,
    ),
    # ---- modes of packed sequences
    ContractRule(
        "attention.mode3_varlen",
        VARLEN_BUT_PLUGIN,
        INNER_TILING,
        "in mode 3 and layout TND no sequence with more queries than keys",
        "Its first rows would see nothing: use mode 2, or drop these queries.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mode7_last",
        VARLEN_FUSION,
        INNER_TILING,
        "in mode 7 a band on the last sequence that is not empty with pre_tokens >= its Skv and "
        "Sq - Skv <= next_tokens <= 0",
        "Compute both from where the sequence was cut.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mode7_others",
        VARLEN_FUSION,
        INNER_TILING,
        "in mode 7 no more queries than keys in any sequence but the last",
        "Only the last one may be cut.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.mode8_first",
        VARLEN_FUSION,
        INNER_TILING,
        "in mode 8 a band on the first sequence that is not empty with pre_tokens >= its Skv and "
        "next_tokens >= Sq - Skv",
        "Compute both from where the sequence was cut.",
        TILING_SOURCE,
    ),
)
