"""Grouped matmul.

Legend: T rows, K depth, E experts, N columns.
"""

from paddle_fused.contracts.rule import (
    NOTES_82,
    NOTES_85,
    OPS_TRANSFORMER,
    PARAM_INVALID,
    ByRelease,
    Change,
    ContractRule,
    listed,
)

LIMITS = {
    "grouped_matmul.groups": 1024,
    "grouped_matmul.list": ByRelease(128, since="9.0.0", later=1024, source=OPS_TRANSFORMER, card="950"),
    "grouped_matmul.last_dim": 65536,  # below
}
CHANGES = (
    Change("`aclnnGroupedMatmulV5`", "absent", "8.2.RC1", "present", NOTES_82),
    Change("`aclnnGroupedMatmul` V1 to V4", "present", "8.5.0", "deprecated", NOTES_85),
)
FLOATS = ("bfloat16", "float16", "float32")
DTYPES = {
    "grouped_matmul.dtype": FLOATS,
    "grouped_matmul.group_list_dtype": ("int64",),
}

_GMM = ("aclnnGroupedMatmulV5", "npu_grouped_matmul", "grouped_matmul")
_GMM_DOC = "Ascend/op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-npu_grouped_matmul.md"

RULES = (
    ContractRule(
        "grouped_matmul.dtype",
        _GMM,
        PARAM_INVALID,
        listed(FLOATS) + ", the same for x and weight",
        "Cast one of them with tensor.astype.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.shape",
        _GMM,
        PARAM_INVALID,
        "x of shape [T, K] and weight of shape [E, K, N], or a list of E weights of shape [K, N]",
        "Reshape or transpose them.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.last_dim",
        _GMM,
        PARAM_INVALID,
        f"last dimensions below {LIMITS['grouped_matmul.last_dim']}",
        "Split the matrix.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.groups",
        _GMM,
        PARAM_INVALID,
        f"up to {LIMITS['grouped_matmul.groups']} groups",
        "Split the experts.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.group_list",
        _GMM,
        PARAM_INVALID,
        "group_list int64 of shape [E]",
        "Pass one element per expert.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.group_list_type",
        _GMM,
        PARAM_INVALID,
        "group_list_type 0 (cumulative sums) or 1 (counts)",
        "Specify the contents of group_list.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.group_order",
        _GMM,
        PARAM_INVALID,
        "non-decreasing cumulative sums (type 0) or non-negative counts (type 1)",
        "Pass the cumulative sum of the counts, or type 1.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.group_total",
        _GMM,
        PARAM_INVALID,
        "groups that cover all T rows",
        "End the cumulative sums with T, or slice x to the rows of the groups.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.list",
        _GMM,
        PARAM_INVALID,
        f"lists of 1 to {LIMITS['grouped_matmul.list']} tensors, and without groups equal numbers of x and "
        "weight",
        "Concatenate the tensors, or pass a group_list.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.ranks",
        ("npu_grouped_matmul",),
        PARAM_INVALID,
        "tensors of rank 2; without groups, x of rank 2 to 6; with groups of rows, one weight of rank 3",
        "Reshape them.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.split_item",
        ("npu_grouped_matmul",),
        PARAM_INVALID,
        "split_item 2 or 3 (one result); 0 or 1 (one result per weight) with equal numbers of x and weight, "
        "or with one x and a list as group_list",
        "Pass 3 and split the result.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.group_type",
        ("npu_grouped_matmul",),
        PARAM_INVALID,
        "group_type 0 (rows of x) or 2 (columns of x) with a group_list tensor, 0 or None with a list, "
        "-1 or None without group_list",
        "Pass 0 for a forward pass.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.float32_lists",
        ("npu_grouped_matmul",),
        PARAM_INVALID,
        "for float32 and a tensor group_list, one x and one weight",
        "Stack the weights, or pass group_list as a list.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.group_length",
        ("npu_grouped_matmul",),
        PARAM_INVALID,
        "more than one group if group_list is a list or has counts",
        "Use matmul for one group.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.act_type",
        ("npu_grouped_matmul",),
        PARAM_INVALID,
        "act_type 0, because activations require quantized operands",
        "Apply the activation to the result.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.output_dtype",
        ("npu_grouped_matmul",),
        PARAM_INVALID,
        "output_dtype None or x's dtype",
        "Cast the result with tensor.astype.",
        _GMM_DOC,
    ),
    ContractRule(
        "grouped_matmul.bias",
        ("npu_grouped_matmul",),
        None,
        "no bias",
        "Add it to the result.",
        "MindSpeed docs/ops/gmm.md",
    ),
    ContractRule(
        "grouped_matmul.quantised",
        ("npu_grouped_matmul",),
        None,
        "floating-point x and weight, without arguments for quantization",
        "Dequantize them.",
        _GMM_DOC,
    ),
)
