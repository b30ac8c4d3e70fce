"""GeGLU. Shapes: ... any leading dimensions, H the width of the result."""

from __future__ import annotations

import paddle.nn.functional as F

from paddle_fused import ascend, native, paddle_release
from paddle_fused.dispatch import Backend, FusedOp
from paddle_fused.sharding import Sharding

from ..arguments import dtype_name, no_16_bit_on_cpu
from ..gated import check_gated, gated_sharding_rule, native_refuses

OPERATOR = "geglu"
APPROXIMATIONS = ("none", "tanh")


def geglu(x, y=None, approximate="none"):
    """gelu(x) * y. Without y, x's last dimension contains both halves, and the first is activated.

    gelu(a) = a * Phi(a), with Phi the CDF of the standard normal distribution; with ``approximate="tanh"``
    gelu(a) = a / 2 * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 a^3))).

    aclnnGeGluV3 and torch_npu.npu_geglu activate the second half unless ``activate_left`` is set: by default
    they compute ``geglu(second, first, "tanh")``.

    Args:
        x: [..., H], or [..., 2 H] without y; float32, bfloat16 or float16 (float64: composed only).
        y: x's shape and dtype, or None.
        approximate: "none" or "tanh".

    Returns:
        [..., H], x's dtype. Gradients flow to x and y.

    Raises:
        ValueError: for other shapes, dtypes and approximations. Without y, also for an odd last dimension.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020; aclnnGeGluV3; torch_npu.npu_geglu.
    """
    check_gated(OPERATOR, x, y)
    if approximate not in APPROXIMATIONS:
        raise ValueError(f"geglu: approximate is {approximate!r}; accepted: 'none' or 'tanh'.")
    return GEGLU(x, y, approximate)


def _composed(x, y, approximate):
    gate, up = paddle_release.halves(x) if y is None else (x, y)
    return F.gelu(gate, approximate=approximate == "tanh") * up


def _composed_unsupported(x, y, approximate):
    return no_16_bit_on_cpu(x)


def _native(x, y, approximate):
    tensors = (x,) if y is None else (x, y)
    return native.call(_native_mode(x, y, approximate), *tensors)[0]


def _native_mode(x, y, approximate):
    return f"pf_geglu{'_tanh' if approximate == 'tanh' else ''}{'_halves' if y is None else ''}"


def _ascend_unsupported(x, y, approximate):
    if dtype_name(x) == "float64":
        return "a card runs float64 on its AICPU"
    return ascend.unsupported_reason(x, y)


GEGLU = FusedOp(
    OPERATOR,
    ascend=Backend(_composed, _ascend_unsupported, "gelu and multiply: the plugin lacks aclnnGeGluV3"),
    native=Backend(_native, native_refuses, _native_mode),
    composed=Backend(_composed, _composed_unsupported),
    sharding=Sharding(("x", "y", "approximate"), gated_sharding_rule),
)
