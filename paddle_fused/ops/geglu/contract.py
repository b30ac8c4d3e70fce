"""GeGLU."""

from paddle_fused.contracts.rule import PARAM_INVALID, Rule

LIMITS: dict[str, int] = {}
DTYPES: dict[str, tuple[str, ...]] = {}

_GEGLU = ("aclnnGeGluV3", "npu_geglu", "geglu")
_GEGLU_SOURCE = "hicann/ops-nn activation/ge_glu_v2/op_host/op_api/aclnn_geglu.cpp"
_ONE_TENSOR = "aclnnGeGluV3, whose x and y are the halves of one tensor"

RULES = (
    Rule(
        "geglu.even",
        _GEGLU,
        PARAM_INVALID,
        "without y an even size of the dimension that holds both halves",
        "Pass y, or an x of even width.",
        _GEGLU_SOURCE,
    ),
    Rule(
        "geglu.same_shape",
        ("geglu",),
        None,
        "x and y of the same shape",
        "Reshape or expand one of them.",
        _ONE_TENSOR,
    ),
    Rule(
        "geglu.same_dtype",
        ("geglu",),
        None,
        "x and y of the same dtype",
        "Cast one of them with tensor.astype.",
        _ONE_TENSOR,
    ),
)
