"""Fused AdamW: aclnnApplyAdamWV2."""

from paddle_fused.contracts.rule import PARAM_INVALID, PARAM_NULLPTR, ContractRule, listed

FLOATS = ("float16", "bfloat16", "float32")
LIMITS = {}
DTYPES = {"adamw.dtype": FLOATS, "adamw.step_dtype": ("int64", "float32")}

_ALL = ("aclnnApplyAdamWV2", "npu_apply_fused_adamw_v2", "FusedAdamW")
_DOC = "hicann/ops-nn optim/apply_adam_w_v2/docs/aclnnApplyAdamWV2.md"
_MINDSPEED = "Ascend/MindSpeed docs/ops/npu_apply_fused_adamw_v2.md"

RULES = (
    ContractRule(
        "adamw.missing",
        _ALL[:2],
        PARAM_NULLPTR,
        "tensors for the parameter, the gradient and both moments",
        "Pass all of them, with zeros as the initial moments.",
        _DOC,
    ),
    ContractRule(
        "adamw.dtype",
        _ALL,
        PARAM_INVALID,
        listed(FLOATS) + " for the parameter and its gradient",
        "Cast it with tensor.astype.",
        _DOC,
    ),
    ContractRule(
        "adamw.moment_dtype",
        _ALL[:2],
        PARAM_INVALID,
        "moments with the parameter's dtype",
        "Use the dtype of the updated tensor, which is the master weight if there is one.",
        _MINDSPEED,
    ),
    ContractRule(
        "adamw.shape",
        _ALL[:2],
        PARAM_INVALID,
        "the same shape for parameter, gradient and moments",
        "Reshape them.",
        _DOC,
    ),
    ContractRule(
        "adamw.step",
        _ALL[:2],
        PARAM_INVALID,
        f"a one-element step above 0 of dtype {listed(DTYPES['adamw.step_dtype'])}",
        "Count steps from 1.",
        _DOC,
    ),
    ContractRule(
        "adamw.max_grad_norm",
        _ALL[:2],
        PARAM_NULLPTR,
        "with amsgrad, max_grad_norm of the parameter's shape",
        "Pass the running maximum, initially zeros.",
        _DOC,
    ),
)
