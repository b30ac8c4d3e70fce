"""Attention: aclnnFlashAttentionScore, aclnnFlashAttentionVarLenScore and the plugin's operator over them.

Legend: B batch, N heads, S sequence length, T tokens, D head size. Sq, Skv: S of query, of key and value.
"""

from paddle_fused.contracts.rule import (
    INNER_TILING,
    NOTES_82,
    NOTES_83,
    OPS_TRANSFORMER,
    PARAM_INVALID,
    ByRelease,
    Change,
    ContractRule,
    listed,
)

K, M = 1 << 10, 1 << 20

LIMITS = {
    "attention.batch": 2 * M,
    "attention.batch_with_prefix": 2 * K,
    "attention.sequences": 2 * K,
    "attention.sequences_with_prefix": K,
    "attention.heads": 256,
    "attention.sequence": M,
    "attention.tokens": M,
    "attention.head_dim": ByRelease(512, since="8.3.RC1", later=768, source=OPS_TRANSFORMER),
    "attention.pse_rows": 1024,  # rows of a compressed position bias
    "attention.statistics": 8,  # copies of each row's softmax maximum and sum, a block of 32 bytes
    "attention.band": 65536,  # the plugin's pre_tokens and next_tokens with a mask
}

CHANGES = (
    Change("`aclnnFlashAttentionVarLenScoreV3`", "absent", "8.2.RC1", "present", NOTES_82),
    Change("`aclnnFlashAttentionVarLenScoreV4`", "absent", "8.3.RC1", "present", NOTES_83),
    Change("`aclnnFlashAttentionVarLenScore` on the 950", "absent", "9.0.0", "present", OPS_TRANSFORMER),
    Change("`aclnnFlashAttentionScore` on the 950", "absent", "9.1.0", "present", OPS_TRANSFORMER),
    Change(
        "`aclnnFlashAttentionVarLenScore`: one-dimensional pse",
        "refused",
        "9.1.0",
        "accepted",
        OPS_TRANSFORMER,
    ),
)

DTYPES = {
    "attention.dtype": ("float16", "bfloat16", "float32"),
    "attention.plugin_dtype": ("float16", "bfloat16"),
    "attention.plugin_mask_dtype": ("bool",),
    "attention.plugin_lengths": ("int32",),
}

LAYOUTS = {"BSH": 3, "SBH": 3, "BSND": 4, "BNSD": 4, "TND": 3}  # layout -> rank

PLUGIN = "flash_attention_npu"
DENSE = ("aclnnFlashAttentionScore", "npu_fusion_attention", "flash_attention", PLUGIN)
VARLEN = ("aclnnFlashAttentionVarLenScore", "npu_fusion_attention", "flash_attention", PLUGIN)
ALL = ("aclnnFlashAttentionScore", *VARLEN)
BUT_PLUGIN = (
    "aclnnFlashAttentionScore",
    "aclnnFlashAttentionVarLenScore",
    "npu_fusion_attention",
    "flash_attention",
)
VARLEN_BUT_PLUGIN = BUT_PLUGIN[1:]
# flash_attention has mask types instead of modes, so the rules of modes do not apply to it.
FUSION = BUT_PLUGIN[:-1]
VARLEN_FUSION = FUSION[1:]
MASK_TYPES = ("flash_attention",)
NOT_MASK_TYPES = tuple(operator for operator in ALL if operator not in MASK_TYPES)

SCORE_DOC = "hicann/ops-transformer attention/flash_attention_score/docs/aclnnFlashAttentionScore.md"
VARLEN_DOC = "hicann/ops-transformer attention/flash_attention_score/docs/aclnnFlashAttentionVarLenScore.md"
_CODE = "hicann/ops-transformer attention/flash_attention_score/op_host"
ACLNN_SOURCE = f"{_CODE}/op_api/aclnn_flash_attention_score.cpp"
TILING_SOURCE = f"{_CODE}/flash_attention_score_tiling_general.cpp"
_TORCH = "Ascend/op-plugin FlashAttentionKernelNpuOpApi.cpp"
_PADDLE = "PaddlePaddle/PaddleCustomDevice backends/npu/custom_op/fused_attention_npu.cc"

_L = LIMITS

RULES = (
    # ---- query, key and value
    ContractRule(
        "attention.dtype",
        FUSION,
        PARAM_INVALID,
        listed(DTYPES["attention.dtype"]),
        "Cast it with tensor.astype.",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.same_dtype",
        ALL,
        PARAM_INVALID,
        "the same dtype for query, key, value and the position bias",
        "Cast one of them with tensor.astype.",
        ACLNN_SOURCE,
    ),
    ContractRule(
        "attention.layout",
        ("npu_fusion_attention", "flash_attention"),
        PARAM_INVALID,
        listed(LAYOUTS),
        "Specify the order of the dimensions of query, key and value.",
        ACLNN_SOURCE,
    ),
    ContractRule(
        "attention.rank",
        BUT_PLUGIN,
        PARAM_INVALID,
        "rank 3 for BSH, SBH and TND, rank 4 for BSND and BNSD, for query, key and value",
        "Reshape it, or use another layout.",
        ACLNN_SOURCE,
    ),
    ContractRule(
        "attention.same_batch",
        DENSE,
        INNER_TILING,
        "equal batch sizes",
        "Repeat or slice one of them.",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.batch",
        DENSE,
        INNER_TILING,
        f"a batch size up to {_L['attention.batch']}",
        "Split the batch.",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.batch_with_prefix",
        BUT_PLUGIN,
        INNER_TILING,
        f"with sparse modes 5 and 6, a batch size up to {_L['attention.batch_with_prefix']}, or up to "
        f"{_L['attention.sequences_with_prefix']} sequences in layout TND",
        "Split the batch.",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.heads",
        ALL,
        INNER_TILING,
        f"1 to {_L['attention.heads']} heads",
        "Split the heads.",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.head_groups",
        ALL,
        INNER_TILING,
        "a number of query heads that is a multiple of the number of key heads",
        "Repeat the heads of key and value.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.sequence",
        DENSE,
        INNER_TILING,
        f"a sequence length up to {_L['attention.sequence']}",
        "Split the sequence.",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.tokens",
        VARLEN,
        INNER_TILING,
        f"up to {_L['attention.tokens']} tokens",
        "Split the tokens into several calls.",
        VARLEN_DOC,
    ),
    ContractRule(
        "attention.head_dim",
        ALL,
        PARAM_INVALID,
        f"a head size from 1 to {_L['attention.head_dim']}",
        "Use composed operators for larger heads.",
        ACLNN_SOURCE,
    ),
    ContractRule(
        "attention.same_head_dim",
        ALL,
        PARAM_INVALID,
        "equal head sizes of query and key",
        "Pad the smaller one with zeros.",
        ACLNN_SOURCE,
    ),
    ContractRule(
        "attention.value_head_dim",
        BUT_PLUGIN,
        PARAM_INVALID,
        "a head size of value up to that of key",
        "Pad query and key with zeros.",
        ACLNN_SOURCE,
    ),
    ContractRule(
        "attention.key_value",
        BUT_PLUGIN,
        INNER_TILING,
        "key and value with the same shape except for the head size",
        "Slice or repeat one of them.",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.no_keys",
        ALL,
        INNER_TILING,
        "at least one key in every sequence that has queries",
        "Remove these queries.",
        VARLEN_DOC,
    ),
    ContractRule(
        "attention.keep_prob",
        ALL,
        INNER_TILING,
        "a keep probability above 0 and at most 1",
        "Use zeros instead of a dropout of 1.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.inner_precise",
        ("npu_fusion_attention",),
        PARAM_INVALID,
        "0 or 1 (no effect), or 2 (fully masked rows give zeros)",
        "Use 0, the default.",
        SCORE_DOC,
    ),
    # ---- sequences of different lengths
    ContractRule(
        "attention.lengths",
        VARLEN_FUSION,
        None,
        "for layout TND, cumulative lengths of query and key in equal numbers",
        "For lengths 3, 2 pass [3, 5].",
        _TORCH,
    ),
    ContractRule(
        "attention.lengths_from_0",
        MASK_TYPES,
        None,
        "both cu_seqlens_q and cu_seqlens_k for layout TND",
        "For lengths 3, 2 pass [0, 3, 5], or the mask masks.documents([3, 2]).",
        _TORCH,
    ),
    ContractRule(
        "attention.lengths_count",
        VARLEN,
        INNER_TILING,
        "equal numbers of query lengths and key lengths",
        "Pass a length of 0 for a sequence without tokens.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.lengths_order",
        (*VARLEN_FUSION, PLUGIN),
        None,
        "non-decreasing cumulative lengths (for lengths 3, 2: [3, 5])",
        "Pass the cumulative sum of the lengths.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.lengths_order_from_0",
        MASK_TYPES,
        None,
        "non-decreasing cumulative lengths (for lengths 3, 2: [0, 3, 5])",
        "Pass the cumulative sum of the lengths.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.lengths_total",
        VARLEN,
        INNER_TILING,
        "cumulative lengths that end with the number of tokens",
        "Slice the tensor, or add a sequence for the remaining tokens.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.sequences",
        VARLEN,
        INNER_TILING,
        f"1 to {_L['attention.sequences']} sequences",
        "Split them into several calls.",
        VARLEN_DOC,
    ),
    # ---- position bias
    ContractRule(
        "attention.pse_shape",
        BUT_PLUGIN,
        INNER_TILING,
        f"[B, N, Sq, Skv], [B, N, 1, Skv], [1, N, Sq, Skv], [B, N, {_L['attention.pse_rows']}, Skv] or "
        f"[1, N, {_L['attention.pse_rows']}, Skv]",
        "Expand the bias over the heads.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.pse_rows",
        FUSION,
        INNER_TILING,
        f"a bias of {_L['attention.pse_rows']} rows only if Sq = Skv, Sq > {_L['attention.pse_rows']} and "
        "the sparse mode is 0, 2 or 3",
        "Pass the bias of all rows.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.pse_varlen",
        VARLEN_FUSION,
        INNER_TILING,
        f"in layout TND [B, N, {_L['attention.pse_rows']}, Skv], [1, N, {_L['attention.pse_rows']}, Skv] or "
        "a one-dimensional bias with N * Sq * Skv elements per sequence",
        "Flatten and concatenate the biases of the sequences.",
        VARLEN_DOC,
    ),
    ContractRule(
        "attention.pse_mode",
        VARLEN_FUSION,
        INNER_TILING,
        "no position bias in modes 7 and 8",
        "Apply the bias to whole sequences in mode 3 or 2.",
        "hicann/ops-nn docs/zh/context/sparse_mode_introduction.md",
    ),
    ContractRule(
        "attention.pse_empty_sequence",
        VARLEN_FUSION,
        INNER_TILING,
        "a position bias only if no sequence is empty",
        "Remove the empty sequences.",
        VARLEN_DOC,
    ),
    # ---- the Paddle plugin's operator
    ContractRule(
        "attention.plugin_dtype",
        (PLUGIN,),
        None,
        listed(DTYPES["attention.plugin_dtype"]),
        "Cast it with tensor.astype.",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_value",
        (PLUGIN,),
        INNER_TILING,
        "key and value with the same shape, because the result has query's shape",
        "Pad value with zeros and slice the result.",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_dropout",
        (PLUGIN,),
        None,
        "a dropout probability from 0 to 1",
        "Pass a probability.",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_mask_dtype",
        (PLUGIN,),
        None,
        listed(DTYPES["attention.plugin_mask_dtype"]) + ", where True means masked",
        "For an additive mask, pass (mask != 0).",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_causal",
        (PLUGIN,),
        None,
        "equal numbers of queries and keys with causal, because its mask is [Sq, Sq]",
        "Pass the mask as attn_mask (True means masked).",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_lengths_missing",
        (PLUGIN,),
        None,
        "both actual_seq_q_len and actual_seq_kv_len if is_varlen is True",
        "Pass cumulative lengths.",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_lengths",
        (PLUGIN,),
        None,
        "a one-dimensional int32 tensor",
        "Cast or reshape it.",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_rank",
        (PLUGIN,),
        None,
        "query, key and value of shape [B, S, N, D], or [T, N, D] with is_varlen",
        "Reshape it.",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_seed",
        (PLUGIN,),
        None,
        "an int64 tensor with two elements, the seed and the offset",
        "Omit it to use the device's generator.",
        _PADDLE,
    ),
)
