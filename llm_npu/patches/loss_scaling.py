"""fp16 loss scaling based on isfinite, for cards without CANN's FloatStatus operators.

paddle-custom-npu's kernel ``check_finite_and_unscale`` uses aclnnForeachNonFiniteCheckAndUnscale where CANN
provides it, and otherwise NPUGetFloatStatus, which the 910C is reported to lack (PaddleCustomDevice#2559).

All loss scalers of Paddle call the operator through the two functions that are replaced here. These are
``paddle.amp.GradScaler`` and the scalers of fleet and sharding, which then agree across ranks. Programs
(``to_static``) and distributed tensors keep the operator. They are rejected if a library answers
NPUGetFloatStatus in place of CANN, because the operator would then miss every overflow.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import paddle

from llm_npu.cann import float_status
from llm_npu.core.errors import UserError

NPU = "npu"


@functools.cache
def decide_by_isfinite() -> None:
    """Replace Paddle's check of gradients in this process, for tensors on ``npu``."""
    check, check_legacy = (
        paddle._C_ops.check_finite_and_unscale_,
        paddle._legacy_C_ops.check_finite_and_unscale,
    )

    @functools.wraps(check)
    def checked(gradients, scale, *more):
        if not _is_decided(gradients):
            return check(gradients, scale, *more)
        return gradients, unscale(gradients, scale)

    @functools.wraps(check_legacy)
    def checked_legacy(gradients, scale, outputs, found_infinite, *more):
        if not _is_decided(gradients) or outputs is not gradients:
            return check_legacy(gradients, scale, outputs, found_infinite, *more)
        with paddle.no_grad():
            paddle.assign(unscale(gradients, scale), found_infinite)
        return outputs, found_infinite

    paddle._C_ops.check_finite_and_unscale_ = checked
    paddle._legacy_C_ops.check_finite_and_unscale = checked_legacy


def unscale(gradients: Sequence[paddle.Tensor], scale: paddle.Tensor) -> paddle.Tensor:
    """Divide ``gradients`` in-place by ``scale`` [1]; return a bool [1]: whether any is infinite or NaN.

    As in Paddle's kernels, the quotient is a product with the rounded reciprocal, in float32.
    """
    with paddle.no_grad():
        factor, finite = 1.0 / scale.astype("float32"), []
        for gradient in gradients:
            is_narrow = gradient.dtype in (paddle.float16, paddle.bfloat16)
            # The plugin has no isfinite for bfloat16.
            wide = gradient.astype("float32") if is_narrow else gradient
            finite.append(paddle.isfinite(wide).all().reshape([1]))
            if is_narrow:
                paddle.assign((wide * factor).astype(gradient.dtype), gradient)
            else:
                gradient.multiply_(factor.astype(gradient.dtype))
        # The plugin has no stack for bool.
        return paddle.logical_not(paddle.concat(finite).all()).reshape([1])


def _is_decided(gradients) -> bool:
    """Whether isfinite decides. UserError for programs and distributed tensors that would lose overflows."""
    if not len(gradients):
        return False
    if paddle.in_dynamic_mode() and not gradients[0].is_dist():
        place = gradients[0].place
        return place.is_custom_place() and place.custom_device_type() == NPU
    if float_status.choice() == float_status.INTERPOSED and paddle.get_device().startswith(NPU):
        raise UserError(
            f"The loss scaler of a program or of distributed tensors would overlook overflows with "
            f"{float_status.VARIABLE}={float_status.INTERPOSED}; train in bfloat16, or with ordinary tensors"
        )
    return False
