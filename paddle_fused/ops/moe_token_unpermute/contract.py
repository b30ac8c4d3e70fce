"""Mixture-of-experts token unpermute.

Legend: T tokens, H hidden size, K experts per token (top-k), M rows kept by permute.
"""

from paddle_fused.contracts.rule import INNER_TILING, PARAM_INVALID, ContractRule

from ..moe_token_permute.contract import LIMITS as PERMUTE_LIMITS

LIMITS = {}
DTYPES = {"moe.sorted_indices_dtype": ("int32",)}

_UNPERMUTE = ("npu_moe_token_unpermute", "moe_token_unpermute")
_UNPERMUTE_DOC = "hicann/ops-transformer moe/moe_token_unpermute/docs/aclnnMoeTokenUnpermute.md"

RULES = (
    ContractRule(
        "moe.permuted",
        _UNPERMUTE,
        INNER_TILING,
        "permuted tokens of shape [M, H] with M up to T * K",
        "Pass the rows in the order returned by permute.",
        _UNPERMUTE_DOC,
    ),
    ContractRule(
        "moe.sorted_indices",
        _UNPERMUTE,
        PARAM_INVALID,
        "sorted_indices int32 of shape [T * K]",
        "Pass the sorted_indices returned by permute.",
        _UNPERMUTE_DOC,
    ),
    ContractRule(
        "moe.probs",
        _UNPERMUTE,
        INNER_TILING,
        f"probs of shape [T, K] with sorted_indices of length T * K, K up to {PERMUTE_LIMITS['moe.top_k']}",
        "Reshape it; without probs, K is 1.",
        _UNPERMUTE_DOC,
    ),
)
