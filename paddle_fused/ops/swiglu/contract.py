"""SwiGLU."""

from paddle_fused.contracts.rule import INNER_TILING, PARAM_INVALID, ContractRule, listed

LIMITS = {"swiglu.grad_alignment": 64}  # bytes
FLOATS = ("float32", "bfloat16", "float16")
DTYPES = {"swiglu.dtype": FLOATS}

_SWIGLU = ("aclnnSwiGlu", "npu_swiglu", "swiglu")
_SWIGLU_DOC = "hicann/ops-nn activation/swi_glu/docs/aclnnSwiGlu.md"
_SWIGLU_GRAD_DOC = "hicann/ops-nn activation/swi_glu_grad/docs/aclnnSwiGluGrad.md"

RULES = (
    ContractRule(
        "swiglu.dtype", _SWIGLU, PARAM_INVALID, listed(FLOATS), "Cast it with tensor.astype.", _SWIGLU_DOC
    ),
    ContractRule(
        "swiglu.even",
        _SWIGLU,
        INNER_TILING,
        "without y, an even size of the dimension that contains both halves",
        "Pass y, or an x with an even size.",
        "hicann/ops-nn activation/swi_glu/op_host/swi_glu_tiling.cpp",
    ),
    ContractRule(
        "swiglu.dim",
        _SWIGLU[:2],
        PARAM_INVALID,
        "a valid dimension of x",
        "Pass -1 for the last one.",
        _SWIGLU_DOC,
    ),
    ContractRule(
        "swiglu.grad_alignment",
        ("aclnnSwiGluGrad", "npu_swiglu", "swiglu_grad", "swiglu"),
        None,
        f"for gradients, rows of x with a multiple of {LIMITS['swiglu.grad_alignment']} bytes",
        "Pad the width, or use composed operators.",
        _SWIGLU_GRAD_DOC,
    ),
    ContractRule(
        "swiglu.same_shape",
        ("swiglu",),
        None,
        "x and y of the same shape",
        "Reshape or expand one of them.",
        "Paddle phi kernel swiglu",
    ),
    ContractRule(
        "swiglu.same_dtype",
        ("swiglu",),
        None,
        "x and y of the same dtype",
        "Cast one of them with tensor.astype.",
        "Paddle phi kernel swiglu",
    ),
)
