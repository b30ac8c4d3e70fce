"""The loss scale of fp16 where gradients are float32 (``--amp_master_grad``)."""

from __future__ import annotations

from types import MethodType

import paddle


def unscale_master_gradients(scaler) -> None:
    """PaddleNLP 3.0.0b4, PaddleFormers 1.1 and 1.2, one process or data parallel: gradients of fp16 keep the
    loss scale, so that every step is clipped, and a step whose gradients are infinite is taken.

    Float32 gradients are in ``main_grad``, and the trainers' ``_wrap_amp_model`` tells a ``GradScaler`` that
    only where processes split the model or its optimizer. ``scaler`` of such a run stays as it is.
    """
    if "_unscale" not in vars(scaler):
        scaler._unscale = MethodType(_unscale, scaler)


def _unscale(scaler, optimizer) -> None:
    """The gradients are those of all ranks, so all find the same."""
    gradients = [getattr(parameter, "main_grad", None) for parameter in optimizer._parameter_list]
    gradients = [gradient for gradient in gradients if gradient is not None]
    found = paddle.zeros([1], "bool")
    if gradients:
        paddle._legacy_C_ops.check_finite_and_unscale(gradients, scaler._scale, gradients, found)
    scaler._found_inf = found
