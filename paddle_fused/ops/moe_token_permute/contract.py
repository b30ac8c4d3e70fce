"""Mixture-of-experts token permute.

Legend: T tokens, H hidden size, K experts per token (top-k).
"""

from paddle_fused.contracts.rule import INNER_TILING, NOTES_82, PARAM_INVALID, Change, ContractRule, listed

LIMITS = {
    "moe.top_k": 512,
    "moe.indices": 16777215,  # exclusive, because indices are sorted as float32
}
CHANGES = (
    Change("`aclnnMoeTokenPermuteWithRoutingMap`, `WithEp`", "absent", "8.2.RC1", "present", NOTES_82),
    Change("`aclnnMoeTokenUnpermuteWithRoutingMap`, `WithEp`", "absent", "8.2.RC1", "present", NOTES_82),
)
FLOATS = ("bfloat16", "float16", "float32")
DTYPES = {
    "moe.dtype": FLOATS,
    "moe.indices_dtype": ("int32", "int64"),
}

_PERMUTE = ("npu_moe_token_permute", "moe_token_permute")
_UNPERMUTE = ("npu_moe_token_unpermute", "moe_token_unpermute")
_PERMUTE_DOC = "hicann/ops-transformer moe/moe_token_permute/docs/aclnnMoeTokenPermute.md"
_PERMUTE_TILING = "hicann/ops-transformer moe/moe_token_permute/op_host/moe_token_permute_tiling.cpp"

RULES = (
    ContractRule(
        "moe.dtype",
        (*_PERMUTE, *_UNPERMUTE),
        PARAM_INVALID,
        listed(FLOATS),
        "Cast it with tensor.astype.",
        _PERMUTE_DOC,
    ),
    ContractRule(
        "moe.tokens", _PERMUTE, INNER_TILING, "tokens of shape [T, H]", "Reshape it.", _PERMUTE_TILING
    ),
    ContractRule(
        "moe.indices_dtype",
        _PERMUTE,
        PARAM_INVALID,
        listed(DTYPES["moe.indices_dtype"]),
        "Cast it with tensor.astype.",
        _PERMUTE_DOC,
    ),
    ContractRule(
        "moe.indices_shape",
        _PERMUTE,
        INNER_TILING,
        "indices of shape [T, K] or [T], with T from tokens",
        "Reshape it.",
        _PERMUTE_TILING,
    ),
    ContractRule(
        "moe.top_k",
        _PERMUTE,
        INNER_TILING,
        f"up to {LIMITS['moe.top_k']} experts per token",
        "Lower top-k.",
        _PERMUTE_TILING,
    ),
    ContractRule(
        "moe.indices",
        _PERMUTE,
        INNER_TILING,
        f"fewer than {LIMITS['moe.indices']} indices, each at least 0 and below {LIMITS['moe.indices']}",
        "Split the tokens.",
        _PERMUTE_TILING,
    ),
    ContractRule(
        "moe.padded_mode",
        ("npu_moe_token_permute", "npu_moe_token_unpermute"),
        INNER_TILING,
        "padded_mode False",
        "Omit it.",
        _PERMUTE_TILING,
    ),
)
