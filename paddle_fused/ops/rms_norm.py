"""RMSNorm. Shapes: ... any leading dimensions, H the normalised one."""

from __future__ import annotations

import paddle

from .. import ascend, native
from ..dispatch import Backend, FusedOp
from .arguments import check_shape, check_tensor, dtype_name, no_16_bit_on_cpu

OPERATOR = "rms_norm"


def rms_norm(x, weight, epsilon: float = 1e-6):
    """y = round(x * rstd) * weight,  rstd = 1 / sqrt(mean(x^2 over the last dimension) + epsilon).

    round() is to x's dtype: PaddleNLP's composed form rounds there, and so does the NPU's operator.
    Arithmetic in float32.

    Args:
        x: [..., H], float32, bfloat16 or float16.
        weight: [H], x's dtype or float32.
        epsilon: added to the mean of the squares, not negative.

    Returns:
        [..., H], x's dtype. Gradients flow to x and weight.

    Raises:
        ValueError: for shapes, dtypes and epsilons other than these.

    Source: aclnnRmsNorm; torch_npu.npu_rms_norm.
    """
    check_tensor(OPERATOR, "x", x)
    check_tensor(OPERATOR, "weight", weight)
    if len(x.shape) == 0:
        raise ValueError(f"{OPERATOR}: x has no dimension; accepted: [..., H].")
    check_shape(OPERATOR, "weight", weight, [x.shape[-1]], "x's last dimension")
    if not epsilon >= 0:
        raise ValueError(f"{OPERATOR}: epsilon is {epsilon}; accepted: a number that is not negative.")
    return RMS_NORM(x, weight, float(epsilon))


def _composed(x, weight, epsilon):
    wide = x if dtype_name(x) == "float64" else x.astype("float32")
    rstd = paddle.rsqrt((wide * wide).mean(-1, keepdim=True) + epsilon)
    return ((wide * rstd).astype(x.dtype) * weight).astype(x.dtype)


def _composed_refuses(x, weight, epsilon):
    return no_16_bit_on_cpu(x, weight)


def _native(x, weight, epsilon):
    return native.call("pf_rms_norm", x, weight, epsilon)[0]


def _native_refuses(x, weight, epsilon):
    if dtype_name(x) == "float64":
        return "the host kernels compute in float32, bfloat16 and float16, not in float64"
    if x.dtype != weight.dtype:
        return "pf_rms_norm wants x and weight of one dtype"
    return native.refuses(x, weight)


def _ascend(x, weight, epsilon):
    return ascend.call("rms_norm_npu", x, weight, epsilon)[0]


def _ascend_refuses(x, weight, epsilon):
    if dtype_name(x) == "float64":
        return "rms_norm_npu computes in float32, bfloat16 and float16, not in float64"
    if x.dtype != weight.dtype:
        return (
            f"rms_norm_npu allocates its result in weight's {dtype_name(weight)} for x in {dtype_name(x)}, a "
            "combination that aclnnRmsNorm does not have"
        )
    return ascend.refuses(x, weight, operators=("rms_norm_npu",))


RMS_NORM = FusedOp(
    OPERATOR,
    ascend=Backend(_ascend, _ascend_refuses, "rms_norm_npu"),
    native=Backend(_native, _native_refuses, "pf_rms_norm"),
    composed=Backend(_composed, _composed_refuses),
)
