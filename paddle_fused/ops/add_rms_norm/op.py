"""Residual addition followed by RMSNorm. Shapes: ... any leading dimensions, H the normalized dimension."""

from __future__ import annotations

from paddle_fused import ascend, contracts, native
from paddle_fused.dispatch import Backend, FusedOp
from paddle_fused.sharding import Sharding, ShardingRule

from ..arguments import (
    COMPOSED_FLOATS,
    FLOAT64_NOTE,
    check_is_tensor,
    check_number,
    check_one_device,
    dtype_name,
    same_shape,
)
from ..rms_norm.op import covers_last_dimensions, no_float64, normalised, plugin_rms_norm, rows_of, wide_dtype

OPERATOR = "add_rms_norm"


def add_rms_norm(x, residual, weight, epsilon: float = 1e-6):
    """residual_out = x + residual,  out = rms_norm(residual_out, weight, epsilon).

    The norm is computed from ``residual_out`` after rounding to its dtype.

    Args:
        x: [..., H], float32, bfloat16 or float16 (float64: composed only).
        residual: x's shape and dtype.
        weight: [H], x's dtype. With more dimensions, the norm is taken over x's last ones.
        epsilon: added to the mean of the squares; not negative.

    Returns:
        (out, residual_out), each with x's shape and dtype. Gradients flow from both to x, residual and
        weight.

    Raises:
        ContractError (a ValueError): for other shapes, dtypes and epsilons.

    Source: aclnnAddRmsNorm; Liger-Kernel's fused_add_rms_norm.
    """
    _check(x, residual, weight, epsilon)
    return ADD_RMS_NORM(x, residual, weight, float(epsilon))


def _check(x, residual, weight, epsilon) -> None:
    names = ("x", "residual", "weight")
    for name, tensor in zip(names, (x, residual, weight), strict=True):
        check_is_tensor(OPERATOR, name, tensor)
    check_one_device(OPERATOR, x=x, residual=residual, weight=weight)
    dtypes = [dtype_name(tensor) for tensor in (x, residual, weight)]
    if dtypes[0] not in COMPOSED_FLOATS or len(set(dtypes)) > 1:
        received = ", ".join(f"{name} is {dtype}" for name, dtype in zip(names, dtypes, strict=True))
        contracts.refuse("add_rms_norm.dtype", OPERATOR, received, FLOAT64_NOTE)
    if not same_shape(x.shape, residual.shape):
        received = f"x has shape {list(x.shape)} and residual {list(residual.shape)}"
        contracts.refuse("add_rms_norm.residual", OPERATOR, received)
    if not covers_last_dimensions(x.shape, weight.shape):
        received = f"x has shape {list(x.shape)} and weight (gamma) {list(weight.shape)}"
        contracts.refuse("add_rms_norm.shape", OPERATOR, received)
    if not check_number(OPERATOR, "epsilon", epsilon) >= 0:
        contracts.refuse("add_rms_norm.epsilon", OPERATOR, f"epsilon is {epsilon}")


def _composed(x, residual, weight, epsilon):
    wide = wide_dtype(x)
    residual_out = (x.astype(wide) + residual.astype(wide)).astype(x.dtype)
    return normalised(residual_out, weight, epsilon)[0].astype(x.dtype), residual_out


def _native(x, residual, weight, epsilon):
    out, residual_out, _ = native.call("pf_add_rms_norm", x, residual, weight, epsilon)
    return out, residual_out


def _native_unsupported(x, residual, weight, epsilon):
    return no_float64(x) or native.unsupported_reason(x, residual, weight)


def _ascend(x, residual, weight, epsilon):
    residual_out = x + residual
    return plugin_rms_norm(residual_out, weight, epsilon)[0], residual_out


def _ascend_unsupported(x, residual, weight, epsilon):
    return no_float64(x) or ascend.unsupported_reason(x, residual, weight, operators=("rms_norm_npu",))


def _sharding_rule(x, residual, weight, epsilon) -> ShardingRule:
    rows, normed = rows_of(x, weight)
    return ShardingRule({"x": rows, "residual": rows, "weight": normed}, (rows, rows))


ADD_RMS_NORM = FusedOp(
    OPERATOR,
    ascend=Backend(_ascend, _ascend_unsupported, "add and rms_norm_npu: the plugin lacks aclnnAddRmsNorm"),
    native=Backend(_native, _native_unsupported, "pf_add_rms_norm"),
    composed=Backend(_composed),
    sharding=Sharding(("x", "residual", "weight", "epsilon"), _sharding_rule),
)
