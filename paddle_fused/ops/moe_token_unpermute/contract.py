"""Token unpermute of mixtures of experts.

Legend: T tokens, H hidden, K experts of a token (top-k).
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
        "permuted tokens of shape [T * K, H] or fewer rows",
        "Pass what permute returned, row for row.",
        _UNPERMUTE_DOC,
    ),
    ContractRule(
        "moe.sorted_indices",
        _UNPERMUTE,
        PARAM_INVALID,
        "sorted_indices int32 of shape [T * K]",
        "Pass what permute returned.",
        _UNPERMUTE_DOC,
    ),
    ContractRule(
        "moe.probs",
        _UNPERMUTE,
        INNER_TILING,
        f"probs of shape [T, K] with T * K elements as sorted_indices, K up to {PERMUTE_LIMITS['moe.top_k']}",
        "Reshape it; without probs K is 1.",
        _UNPERMUTE_DOC,
    ),
)
