"""RMSNorm. Shapes: ... any leading dimensions, H the normalized dimension."""

from __future__ import annotations

import paddle

from paddle_fused import ascend, contracts, native, paddle_release
from paddle_fused.dispatch import Backend, FusedOp
from paddle_fused.sharding import Dims, Sharding, ShardingRule, numbered

from ..arguments import (
    COMPOSED_FLOATS,
    FLOAT64_NOTE,
    check_is_tensor,
    check_number,
    check_one_device,
    dtype_name,
    same_shape,
)

OPERATOR = "rms_norm"


def rms_norm(x, weight, epsilon: float = 1e-6):
    """y = round(x * rstd) * weight,  rstd = 1 / sqrt(mean(x^2 over weight's dimensions) + epsilon).

    round() casts to weight's dtype, as in PaddleNLP's composed form and in the NPU's operator. All other
    arithmetic is float32.

    Args:
        x: [..., H], float32, bfloat16 or float16 (float64: composed only); rank 1 to 8.
        weight: [H], x's dtype or float32. With more dimensions, the norm is taken over x's last ones.
        epsilon: added to the mean of the squares; not negative.

    Returns:
        [..., H], x's dtype. Gradients flow to x and weight, in their dtypes.

    Raises:
        ContractError (a ValueError): for other shapes, dtypes and epsilons.

    Source: aclnnRmsNorm; torch_npu.npu_rms_norm.
    """
    return rms_norm_and_rstd(OPERATOR, x, weight, epsilon)[0]


def rms_norm_and_rstd(operator: str, x, weight, epsilon):
    """(y, rstd) for the public function ``operator``. rstd is float32 [..., 1], with x's rank."""
    check_is_tensor(operator, "x", x)
    check_is_tensor(operator, "weight", weight)
    check_one_device(operator, x=x, weight=weight)
    if dtype_name(x) not in COMPOSED_FLOATS:
        contracts.refuse("rms_norm.dtype", operator, f"x is {dtype_name(x)}", FLOAT64_NOTE)
    if dtype_name(weight) not in (dtype_name(x), "float32"):
        received = f"x is {dtype_name(x)} and weight (gamma) is {dtype_name(weight)}"
        contracts.refuse("rms_norm.gamma_dtype", operator, received)
    if not covers_last_dimensions(x.shape, weight.shape):
        received = f"x has shape {list(x.shape)} and weight (gamma) {list(weight.shape)}"
        contracts.refuse("rms_norm.shape", operator, received)
    epsilon = check_number(operator, "epsilon", epsilon)
    if not epsilon >= 0:
        contracts.refuse("rms_norm.epsilon", operator, f"epsilon is {epsilon}")
    return RMS_NORM(x, weight, epsilon)


def covers_last_dimensions(x, weight) -> bool:
    """Whether ``weight`` is the shape of the last dimensions of ``x``, within CANN's rank limit."""
    return (
        1 <= len(weight) <= len(x) <= contracts.limit("rms_norm.rank")
        and 0 not in weight
        and same_shape(x[-len(weight) :], weight)
    )


def wide_dtype(*tensors) -> str:
    """The compute dtype of the composed norms: float32, or float64 if a tensor is float64."""
    return "float64" if "float64" in map(dtype_name, tensors) else "float32"


def normalised(x, weight, epsilon):
    """(y, rstd) by definition, with y not yet rounded."""
    wide = wide_dtype(x, weight)
    dims = list(range(len(x.shape) - len(weight.shape), len(x.shape)))
    z = x.astype(wide)
    rstd = paddle.rsqrt((z * z).mean(dims, keepdim=True) + epsilon)
    normal = (z * rstd).astype(weight.dtype)
    return normal.astype(wide) * weight.astype(wide), rstd


def _composed(x, weight, epsilon):
    y, rstd = normalised(x, weight, epsilon)
    return y.astype(x.dtype), rstd


def no_float64(*tensors) -> str | None:
    """The native and ascend backends' reason to decline a float64 tensor, or None."""
    if any(tensor is not None and dtype_name(tensor) == "float64" for tensor in tensors):
        return "only the composed backend supports float64"
    return None


def _native(x, weight, epsilon):
    return native.call("pf_rms_norm", x, weight, epsilon)


def _native_unsupported(x, weight, epsilon):
    return no_float64(x, weight) or native.unsupported_reason(x, weight)


def plugin_rms_norm(x, weight, epsilon):
    """(y, rstd) from the plugin's operator, whose gradient of ``weight`` is always float32."""
    weight = paddle_release.with_gradient_of_own_dtype(weight)
    if len(x.shape) >= contracts.limit("rms_norm.gradient_rank"):
        return ascend.call("rms_norm_npu", x, weight, epsilon)
    return [tensor.squeeze(0) for tensor in ascend.call("rms_norm_npu", x.unsqueeze(0), weight, epsilon)]


def _ascend_unsupported(x, weight, epsilon):
    reason = no_float64(x, weight) or ascend.unsupported_reason(x, weight, operators=("rms_norm_npu",))
    if reason is None and dtype_name(x) != dtype_name(weight):
        received = f"x is {dtype_name(x)} and weight (gamma) is {dtype_name(weight)}"
        reason = contracts.reason("rms_norm.plugin_gamma_dtype", "rms_norm_npu", received)
    return reason


def rows_of(x, weight) -> tuple[Dims, Dims]:
    """The dimensions of x and weight. Those before the normalized ones may be sharded."""
    normed = (None,) * len(weight.shape)
    return numbered(len(x.shape) - len(normed)) + normed, normed


def _sharding_rule(x, weight, epsilon) -> ShardingRule:
    rows, normed = rows_of(x, weight)
    return ShardingRule({"x": rows, "weight": normed}, (rows, rows))


RMS_NORM = FusedOp(
    OPERATOR,
    ascend=Backend(plugin_rms_norm, _ascend_unsupported, "rms_norm_npu"),
    native=Backend(_native, _native_unsupported, "pf_rms_norm"),
    composed=Backend(_composed),
    sharding=Sharding(("x", "weight", "epsilon"), _sharding_rule),
    without_gradient=(1,),
)
