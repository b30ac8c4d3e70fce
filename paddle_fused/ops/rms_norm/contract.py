"""RMSNorm.

Legend: H hidden size (the last dimension).
"""

from paddle_fused.contracts.rule import (
    INNER_TILING,
    OPS_NN,
    PARAM_INVALID,
    ByRelease,
    Change,
    ContractRule,
    listed,
)

LIMITS = {
    "rms_norm.rank": 8,
    "rms_norm.gradient_rank": ByRelease(1, since="9.1.0", later=2, source=OPS_NN),  # at least
}
# The virtual NPU applies the later behavior of both at every release.
CHANGES = (
    Change("`aclnnRmsNorm`: empty gamma", "not documented", "9.1.0", "refused", OPS_NN),
    Change("`aclnnRmsNorm`: rank of rstd", "not documented", "9.1.0", "x's rank", OPS_NN),
)
FLOATS = ("float32", "bfloat16", "float16")
DTYPES = {"rms_norm.dtype": FLOATS}

PLUGIN_RMS_NORM = "rms_norm_npu"
_RMS = ("aclnnRmsNorm", "npu_rms_norm", "rms_norm", PLUGIN_RMS_NORM)
_RMS_DOC = "hicann/ops-nn norm/rms_norm/docs/aclnnRmsNorm.md"
_PADDLE = "PaddlePaddle/PaddleCustomDevice backends/npu/custom_op/fused_rms_norm_npu.cc"

RULES = (
    ContractRule(
        "rms_norm.dtype",
        _RMS,
        PARAM_INVALID,
        listed(FLOATS),
        "Cast it with tensor.astype.",
        _RMS_DOC,
    ),
    ContractRule(
        "rms_norm.gamma_dtype",
        ("aclnnRmsNorm", "npu_rms_norm", "rms_norm"),
        PARAM_INVALID,
        "gamma with x's dtype or float32",
        "Cast gamma with tensor.astype.",
        _RMS_DOC,
    ),
    ContractRule(
        "rms_norm.plugin_gamma_dtype",
        (PLUGIN_RMS_NORM,),
        PARAM_INVALID,
        "gamma with x's dtype, because y has gamma's dtype and CANN requires x's",
        "Cast gamma to x's dtype.",
        _PADDLE,
    ),
    ContractRule(
        "rms_norm.shape",
        _RMS,
        INNER_TILING,
        f"x of rank 1 to {LIMITS['rms_norm.rank']} and a non-empty gamma with the shape of x's last "
        "dimensions",
        "Pass a gamma that covers the normalized dimensions.",
        _RMS_DOC,
    ),
    ContractRule(
        "rms_norm.gradient_rank",
        ("aclnnRmsNormGrad", "npu_rms_norm", PLUGIN_RMS_NORM),
        INNER_TILING,
        "for gradients from CANN 9.1.0 on, x of rank 2 or more",
        "Use x.unsqueeze(0) and squeeze the result.",
        "hicann/ops-nn norm/rms_norm_grad/docs/aclnnRmsNormGrad.md",
    ),
    ContractRule(
        "rms_norm.epsilon",
        _RMS,
        PARAM_INVALID,
        "a non-negative number, such as 1e-6",
        "Pass a positive epsilon to avoid a division by zero.",
        _RMS_DOC,
    ),
)
