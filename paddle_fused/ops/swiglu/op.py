"""SwiGLU. Shapes: ... any leading dimensions, H the width of the result."""

from __future__ import annotations

import paddle.nn.functional as F

from paddle_fused import ascend, contracts, native, paddle_release
from paddle_fused.dispatch import Backend, FusedOp
from paddle_fused.sharding import Sharding

from ..arguments import dtype_name, no_16_bit_on_cpu, wants_gradient
from ..gated import check_gated, gated_sharding_rule, native_refuses

OPERATOR = "swiglu"


def swiglu(x, y=None):
    """silu(x) * y with silu(a) = a / (1 + exp(-a)). Without y, x's last dimension contains x, then y.

    The host kernels support both forms without copies.

    Args:
        x: [..., H], or [..., 2 H] without y; float32, bfloat16 or float16 (float64: composed only).
        y: x's shape and dtype, or None.

    Returns:
        [..., H], x's dtype. Gradients flow to x and y.

    Raises:
        ValueError: for other shapes and dtypes. Without y, also for an odd last dimension.

    Source: aclnnSwiGlu; torch_npu.npu_swiglu; paddle.incubate.nn.functional.swiglu.
    """
    check_gated(OPERATOR, x, y)
    return SWIGLU(x, y)


def _composed(x, y):
    gate, up = paddle_release.halves(x) if y is None else (x, y)
    return F.silu(gate) * up


def _composed_unsupported(x, y):
    return no_16_bit_on_cpu(x)


def _native(x, y):
    return native.call("pf_swiglu_halves", x)[0] if y is None else native.call("pf_swiglu", x, y)[0]


def _native_mode(x, y):
    return "pf_swiglu_halves" if y is None else "pf_swiglu"


def _ascend(x, y):
    return paddle_release.swiglu(x, y)


def _ascend_unsupported(x, y):
    reason = ascend.unsupported_reason(x, y)
    if reason is None and dtype_name(x) not in contracts.dtypes("swiglu.dtype"):
        reason = contracts.reason("swiglu.dtype", OPERATOR, f"x is {dtype_name(x)}")
    if reason is None and y is None and x.shape[-1] < 0:
        reason = "Paddle's swiglu mistakes an unknown last dimension for an odd one"
    if reason is None and wants_gradient(x, y):
        # The plugin concatenates x and y, so aclnnSwiGluGrad receives rows of the concatenated tensor.
        width = (x.shape[-1] if len(x.shape) else 1) * (1 if y is None else 2)
        row = width * (4 if dtype_name(x) == "float32" else 2)
        if width >= 0 and row % contracts.limit("swiglu.grad_alignment"):
            reason = contracts.reason("swiglu.grad_alignment", OPERATOR, f"a row has {row} bytes")
    return reason


def _ascend_mode(x, y):
    if y is None:
        return "swiglu of Paddle, aclnnSwiGlu on a card"
    return "swiglu of Paddle; on a card, a copy that joins x and y, then aclnnSwiGlu"


SWIGLU = FusedOp(
    OPERATOR,
    ascend=Backend(_ascend, _ascend_unsupported, _ascend_mode),
    native=Backend(_native, native_refuses, _native_mode),
    composed=Backend(_composed, _composed_unsupported),
    sharding=Sharding(("x", "y"), gated_sharding_rule),
)
