"""Attention: aclnnFlashAttentionScore, aclnnFlashAttentionVarLenScore and the plugin's operator over them.

Legend: B batch, N heads, S sequence length, T tokens, D head size; q and kv: of query, of key and value.
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
    "attention.pse_rows": 1024,  # rows that are kept of a compressed position bias
    "attention.statistics": 8,  # copies of each row's softmax maximum and sum: a block of 32 bytes
    "attention.band": 65536,  # the plugin's pre_tokens and next_tokens beside a mask
}

CHANGES = (
    Change("`aclnnFlashAttentionVarLenScoreV3`", "absent", "8.2.RC1", "present", NOTES_82),
    Change("`aclnnFlashAttentionVarLenScoreV4`", "absent", "8.3.RC1", "present", NOTES_83),
    Change("`aclnnFlashAttentionVarLenScore` on the 950", "absent", "9.0.0", "present", OPS_TRANSFORMER),
    Change("`aclnnFlashAttentionScore` on the 950", "absent", "9.1.0", "present", OPS_TRANSFORMER),
    Change(
        "`aclnnFlashAttentionVarLenScore`: pse of one dimension",
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

LAYOUTS = {"BSH": 3, "SBH": 3, "BSND": 4, "BNSD": 4, "TND": 3}  # and their ranks

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
# flash_attention has mask types instead of modes, and cannot break the rules of modes.
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
        "one dtype for query, key, value and the position bias",
        "Cast one of them with tensor.astype.",
        ACLNN_SOURCE,
    ),
    ContractRule(
        "attention.layout",
        ("npu_fusion_attention", "flash_attention"),
        PARAM_INVALID,
        listed(LAYOUTS),
        "Name the order of the dimensions of query, key and value.",
        ACLNN_SOURCE,
    ),
    ContractRule(
        "attention.rank",
        BUT_PLUGIN,
        PARAM_INVALID,
        "three dimensions for BSH, SBH and TND, four for BSND and BNSD, the same for query, key and value",
        "Reshape it, or name another layout.",
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
        f"a batch size up to {_L['attention.batch_with_prefix']} with sparse modes 5 and 6, up to "
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
        "key and value of the same shape but for the head size",
        "Slice or repeat one of them.",
        SCORE_DOC,
    ),
    ContractRule(
        "attention.no_keys",
        ALL,
        INNER_TILING,
        "at least one key where there are queries",
        "Remove the queries that see nothing.",
        VARLEN_DOC,
    ),
    ContractRule(
        "attention.keep_prob",
        ALL,
        INNER_TILING,
        "a keep probability above 0 and up to 1",
        "A dropout of 1 leaves nothing: use zeros.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.inner_precise",
        ("npu_fusion_attention",),
        PARAM_INVALID,
        "0 or 1 (no effect), 2 (rows with hidden keys only give zeros)",
        "Leave it at 0.",
        SCORE_DOC,
    ),
    # ---- sequences of different lengths
    ContractRule(
        "attention.lengths",
        VARLEN_FUSION,
        None,
        "cumulative lengths of query and key, as many of one as of the other, for layout TND",
        "For lengths 3, 2 pass [3, 5].",
        _TORCH,
    ),
    ContractRule(
        "attention.lengths_from_0",
        MASK_TYPES,
        None,
        "cu_seqlens_q and cu_seqlens_k, both, for layout TND",
        "For lengths 3, 2 pass [0, 3, 5], or the mask masks.documents([3, 2]).",
        _TORCH,
    ),
    ContractRule(
        "attention.lengths_count",
        VARLEN,
        INNER_TILING,
        "as many lengths of query as of key",
        "Give a length of 0 to a sequence without tokens.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.lengths_order",
        (*VARLEN_FUSION, PLUGIN),
        None,
        "cumulative lengths, which never decrease (for lengths 3, 2: [3, 5])",
        "Take their cumulative sum.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.lengths_order_from_0",
        MASK_TYPES,
        None,
        "cumulative lengths, which never decrease (for lengths 3, 2: [0, 3, 5])",
        "Take their cumulative sum.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.lengths_total",
        VARLEN,
        INNER_TILING,
        "cumulative lengths whose last element is the number of tokens",
        "Slice the tensor, or give the tokens at the end a sequence.",
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
        f"a bias of {_L['attention.pse_rows']} rows where Sq = Skv, Sq > {_L['attention.pse_rows']} and the "
        "sparse mode is 0, 2 or 3",
        "Pass the bias of all rows.",
        TILING_SOURCE,
    ),
    ContractRule(
        "attention.pse_varlen",
        VARLEN_FUSION,
        INNER_TILING,
        f"in layout TND [B, N, {_L['attention.pse_rows']}, Skv], [1, N, {_L['attention.pse_rows']}, Skv] or "
        "all biases in one dimension, N * Sq * Skv elements for each sequence",
        "Flatten the biases of the sequences and join them.",
        VARLEN_DOC,
    ),
    ContractRule(
        "attention.pse_mode",
        VARLEN_FUSION,
        INNER_TILING,
        "no position bias in modes 7 and 8",
        "Apply the bias to whole sequences, with mode 3 or 2.",
        "hicann/ops-nn docs/zh/context/sparse_mode_introduction.md",
    ),
    ContractRule(
        "attention.pse_empty_sequence",
        VARLEN_FUSION,
        INNER_TILING,
        "a position bias only where no sequence is empty",
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
        "key and value of the same shape: the result has query's",
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
        listed(DTYPES["attention.plugin_mask_dtype"]) + ", where True hides a key",
        "For an additive mask pass (mask != 0).",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_causal",
        (PLUGIN,),
        None,
        "as many queries as keys with causal: its mask is [Sq, Sq]",
        "Pass the mask itself as attn_mask (True hides a key).",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_lengths_missing",
        (PLUGIN,),
        None,
        "actual_seq_q_len and actual_seq_kv_len, both, when is_varlen is True",
        "Pass cumulative lengths.",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_lengths",
        (PLUGIN,),
        None,
        "int32 with one dimension",
        "Cast or reshape it.",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_rank",
        (PLUGIN,),
        None,
        "query, key and value of four dimensions, [B, S, N, D], or, with is_varlen, of three, [T, N, D]",
        "Reshape it.",
        _PADDLE,
    ),
    ContractRule(
        "attention.plugin_seed",
        (PLUGIN,),
        None,
        "int64 with two elements, the seed and the offset",
        "Leave it out for a seed of the device's generator.",
        _PADDLE,
    ),
)
