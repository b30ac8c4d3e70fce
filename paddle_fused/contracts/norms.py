"""RMSNorm, residual norms with dropout, and SwiGLU.

Legend: H hidden size (the last dimension).
"""

from .rule import INNER_TILING, PARAM_INVALID, Rule, listed

LIMITS = {
    "rms_norm.rank": 8,
    "swiglu.grad_alignment": 64,  # bytes
}

# (x, gamma, y): rstd is always float32.
RMS_NORM_DTYPES = (
    ("float32", "float32", "float32"),
    ("float16", "float16", "float16"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float16", "float32", "float16"),
    ("bfloat16", "float32", "bfloat16"),
)
FLOATS = ("float32", "bfloat16", "float16")
DTYPES = {
    "rms_norm.dtype": FLOATS,
    "add_rms_norm.dtype": FLOATS,
    "swiglu.dtype": FLOATS,
    "dropout_add_norm.dtype": FLOATS,
}

PLUGIN_RMS_NORM = "rms_norm_npu"
_RMS = ("aclnnRmsNorm", "npu_rms_norm", "rms_norm", PLUGIN_RMS_NORM)
_ADD_RMS = ("aclnnAddRmsNorm", "add_rms_norm")
_SWIGLU = ("aclnnSwiGlu", "npu_swiglu", "swiglu")
_DROPOUT = (
    "npu_dropout_add_layer_norm",
    "npu_dropout_add_rms_norm",
    "dropout_add_layer_norm",
    "dropout_add_rms_norm",
)

_RMS_DOC = "hicann/ops-nn norm/rms_norm/docs/aclnnRmsNorm.md"
_ADD_RMS_DOC = "hicann/ops-nn norm/add_rms_norm/docs/aclnnAddRmsNorm.md"
_SWIGLU_DOC = "hicann/ops-nn activation/swi_glu/docs/aclnnSwiGlu.md"
_SWIGLU_GRAD_DOC = "hicann/ops-nn activation/swi_glu_grad/docs/aclnnSwiGluGrad.md"
_DROPOUT_DOC = "Ascend/MindSpeed docs/ops/npu_dropout_add_layer_norm.md"
_PADDLE = "PaddlePaddle/PaddleCustomDevice backends/npu/custom_op/fused_rms_norm_npu.cc"

RULES = (
    # ---- RMSNorm
    Rule(
        "rms_norm.dtype",
        _RMS,
        PARAM_INVALID,
        listed(FLOATS),
        "Cast it with tensor.astype.",
        _RMS_DOC,
    ),
    Rule(
        "rms_norm.gamma_dtype",
        ("aclnnRmsNorm", "npu_rms_norm", "rms_norm"),
        PARAM_INVALID,
        "gamma of x's dtype, or float32",
        "Cast gamma with tensor.astype.",
        _RMS_DOC,
    ),
    Rule(
        "rms_norm.plugin_gamma_dtype",
        (PLUGIN_RMS_NORM,),
        PARAM_INVALID,
        "gamma of x's dtype: the operator makes y with gamma's dtype, and CANN wants x's",
        "Cast gamma to x's dtype.",
        _PADDLE,
    ),
    Rule(
        "rms_norm.shape",
        _RMS,
        INNER_TILING,
        f"x of rank 1 to {LIMITS['rms_norm.rank']} and gamma of the shape of x's last dimensions, none of "
        "them 0",
        "Pass a gamma that covers the dimensions to normalise over.",
        _RMS_DOC,
    ),
    Rule(
        "rms_norm.epsilon",
        _RMS,
        PARAM_INVALID,
        "a number that is not negative, such as 1e-6",
        "Pass a positive one: it keeps the root away from zero.",
        _RMS_DOC,
    ),
    # ---- AddRmsNorm
    Rule(
        "add_rms_norm.dtype",
        _ADD_RMS,
        PARAM_INVALID,
        listed(FLOATS) + ", the same for x, residual and gamma",
        "Cast them with tensor.astype.",
        _ADD_RMS_DOC,
    ),
    Rule(
        "add_rms_norm.residual",
        _ADD_RMS,
        PARAM_INVALID,
        "x and residual of the same shape",
        "Expand one of them: they are not broadcast.",
        _ADD_RMS_DOC,
    ),
    Rule(
        "add_rms_norm.shape",
        _ADD_RMS,
        PARAM_INVALID,
        f"x of rank 1 to {LIMITS['rms_norm.rank']} and gamma of the shape of x's last dimensions",
        "Pass a gamma that covers the dimensions to normalise over.",
        _ADD_RMS_DOC,
    ),
    Rule(
        "add_rms_norm.epsilon",
        _ADD_RMS,
        PARAM_INVALID,
        "a number that is not negative, such as 1e-6",
        "Pass a positive one: it keeps the root away from zero.",
        _ADD_RMS_DOC,
    ),
    # ---- SwiGLU
    Rule("swiglu.dtype", _SWIGLU, PARAM_INVALID, listed(FLOATS), "Cast it with tensor.astype.", _SWIGLU_DOC),
    Rule(
        "swiglu.even",
        _SWIGLU,
        INNER_TILING,
        "without y an even size of the dimension that holds both halves",
        "Pass y, or an x of even width.",
        "hicann/ops-nn activation/swi_glu/op_host/swi_glu_tiling.cpp",
    ),
    Rule(
        "swiglu.dim",
        _SWIGLU[:2],
        PARAM_INVALID,
        "a dimension that x has",
        "Pass -1 for the last one.",
        _SWIGLU_DOC,
    ),
    Rule(
        "swiglu.grad_alignment",
        ("aclnnSwiGluGrad", "npu_swiglu", "swiglu_grad", "swiglu"),
        None,
        f"for a gradient rows of x that are a multiple of {LIMITS['swiglu.grad_alignment']} bytes",
        "Pad the width, or use composed operators.",
        _SWIGLU_GRAD_DOC,
    ),
    Rule(
        "swiglu.same_shape",
        ("swiglu",),
        None,
        "x and y of the same shape",
        "Reshape or expand one of them.",
        "Paddle phi kernel swiglu",
    ),
    Rule(
        "swiglu.same_dtype",
        ("swiglu",),
        None,
        "x and y of the same dtype",
        "Cast one of them with tensor.astype.",
        "Paddle phi kernel swiglu",
    ),
    # ---- dropout, add and norm
    Rule(
        "dropout_add_norm.dtype",
        _DROPOUT,
        None,
        listed(FLOATS) + ", the same for x0, rowscale and layerscale",
        "Cast it with tensor.astype.",
        _DROPOUT_DOC,
    ),
    Rule(
        "dropout_add_norm.x0",
        _DROPOUT,
        None,
        "x0 of shape [..., H] with H above 0",
        "Reshape it: the norm is taken over its last dimension.",
        _DROPOUT_DOC,
    ),
    Rule(
        "dropout_add_norm.residual",
        _DROPOUT,
        None,
        "a residual of x0's shape and of x0's dtype or float32, or none",
        "Expand or cast it: it is not broadcast.",
        _DROPOUT_DOC,
    ),
    Rule(
        "dropout_add_norm.weight",
        _DROPOUT,
        None,
        "a weight of shape [H], H the last dimension of x0, and of x0's dtype or float32",
        "Reshape or cast it.",
        _DROPOUT_DOC,
    ),
    Rule(
        "dropout_add_norm.bias",
        _DROPOUT,
        None,
        "a bias of weight's shape and dtype, or none",
        "Reshape or cast it.",
        _DROPOUT_DOC,
    ),
    Rule(
        "dropout_add_norm.rms_bias",
        ("npu_dropout_add_rms_norm",),
        None,
        "no bias: MindSpeed's code takes one and does not add it",
        "Pass None, or call paddle_fused.dropout_add_rms_norm, which adds it.",
        "MindSpeed ops/csrc/cann/npu_dropout_add_layer_norm.cpp",
    ),
    Rule(
        "dropout_add_norm.rowscale",
        _DROPOUT,
        None,
        "rowscale of the shape of x0 without its last dimension",
        "Reshape it.",
        _DROPOUT_DOC,
    ),
    Rule(
        "dropout_add_norm.layerscale",
        _DROPOUT,
        None,
        "layerscale of shape [H], H the last dimension of x0",
        "Reshape it.",
        _DROPOUT_DOC,
    ),
    Rule(
        "dropout_add_norm.dropout",
        _DROPOUT,
        None,
        "a dropout probability from 0 to 1",
        "Pass the probability to drop, 0 when not training.",
        _DROPOUT_DOC,
    ),
    Rule(
        "dropout_add_norm.epsilon",
        _DROPOUT,
        None,
        "a number that is not negative, such as 1e-5",
        "Pass a positive one: it keeps the root away from zero.",
        _DROPOUT_DOC,
    ),
)
