"""GeGLU."""

from paddle_fused.contracts.rule import PARAM_INVALID, ContractRule, listed

LIMITS: dict[str, int] = {}
FLOATS = ("float32", "bfloat16", "float16")
DTYPES = {"geglu.dtype": FLOATS}

_GEGLU = ("aclnnGeGluV3", "npu_geglu", "geglu")
_GEGLU_SOURCE = "hicann/ops-nn activation/ge_glu_v2/op_host/op_api/aclnn_geglu.cpp"
_ONE_TENSOR = "aclnnGeGluV3, with x and y as the halves of one tensor"

RULES = (
    ContractRule(
        "geglu.dtype",
        _GEGLU[:2],
        PARAM_INVALID,
        listed(FLOATS),
        "Cast it with tensor.astype.",
        _GEGLU_SOURCE,
    ),
    ContractRule(
        "geglu.dim",
        _GEGLU[:2],
        PARAM_INVALID,
        "a valid dimension of self",
        "Pass -1 for the last one.",
        _GEGLU_SOURCE,
    ),
    ContractRule(
        "geglu.approximate",
        _GEGLU[:2],
        PARAM_INVALID,
        "0 for none or 1 for tanh",
        "Pass 1, the default of torch_npu.",
        _GEGLU_SOURCE,
    ),
    ContractRule(
        "geglu.even",
        _GEGLU,
        PARAM_INVALID,
        "without y, an even size of the dimension that contains both halves",
        "Pass y, or an x with an even size.",
        _GEGLU_SOURCE,
    ),
    ContractRule(
        "geglu.same_shape",
        ("geglu",),
        None,
        "x and y of the same shape",
        "Reshape or expand one of them.",
        _ONE_TENSOR,
    ),
    ContractRule(
        "geglu.same_dtype",
        ("geglu",),
        None,
        "x and y of the same dtype",
        "Cast one of them with tensor.astype.",
        _ONE_TENSOR,
    ),
)
