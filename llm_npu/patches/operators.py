"""Patches for defects in Paddle's operators."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator

import paddle

import paddle_fused
from paddle_fused import indexed_assignment, paddle_release


def apply() -> None:
    """Apply the patches that the installed version needs; idempotent."""
    if paddle_release.before(3, 2):
        fix_where_default_dtype()
    if paddle_release.before(3, 4):
        fix_flashmask_attention()
        if paddle_release.at_least(3, 1, 1):
            fix_gradient_of_assigned_values()


@functools.cache
def fix_where_default_dtype() -> None:
    """Paddle 3.0 and 3.1: ``paddle.where(mask, 0.0, -1.0)`` is float64, which a card runs on its AICPU.

    PaddleNLP creates its attention masks this way. With the patch, Python floats have the default dtype, as
    in Paddle 3.2.
    """
    where = paddle.where

    @functools.wraps(where)
    def typed(condition, x=None, y=None, *arguments, **named):
        return where(condition, _in_default_dtype(x), _in_default_dtype(y), *arguments, **named)

    paddle.where = typed


def _in_default_dtype(choice):
    return paddle.full([1], choice, paddle.get_default_dtype()) if isinstance(choice, float) else choice


@functools.cache
def fix_flashmask_attention() -> None:
    """Paddle 3.0 to 3.3: ``flashmask_attention`` fails on npu.

    The error is "kernel `flash_attn` is not registered" or, with row indices, "FLAGS_cudnn_deterministic
    cannot get its value" (a flag of CUDA builds). PaddleFormers' attention calls the function by default, and
    ERNIE's calls it with start row indices. The patch runs `paddle_fused.flashmask_attention` for tensors on
    npu; other devices are unchanged. Modules that imported the function earlier get the new function.
    """
    name = "flashmask_attention"
    upstream = getattr(importlib.import_module("paddle.nn.functional.flash_attention"), name)

    @functools.wraps(upstream)
    def by_device(query, *arguments, **named):
        return (paddle_fused.flashmask_attention if _is_on_npu(query) else upstream)(
            query, *arguments, **named
        )

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is upstream:
            setattr(module, name, by_device)


def _is_on_npu(tensor) -> bool:
    """Values of a captured program have no place yet: they run on the current device."""
    if not isinstance(tensor, paddle.Tensor):
        return paddle.device.get_device().startswith("npu")
    return tensor.place.is_custom_place() and tensor.place.custom_device_type() == "npu"


@functools.cache
def fix_gradient_of_assigned_values() -> None:
    """Paddle 3.1.1 to 3.3: ``x[mask] = value`` and ``x[indices] = value`` give ``value`` a wrong gradient.

    In float16 and bfloat16 other tensors are overwritten, or the process crashes. In float64 and complex
    dtypes the gradient has wrong values; in float32 it is 0 for a mask and a value of one element. A value
    with additional dims of size 1 corrupts memory in the forward pass. The defects are in CPU kernels, which
    a card falls back to. With the patch, such assignments run ``index_put_``.
    """
    paddle.Tensor.__setitem__ = indexed_assignment.corrected(paddle.Tensor.__setitem__)


@contextlib.contextmanager
def as_numbers() -> Iterator[None]:
    """Paddle 3.3 with FLAGS_use_stride_kernel=0, as set by PaddleNLP's scripts for NPUs: safetensors fails.

    safetensors views a file as a numeric tensor. Without that flag, ``view_dtype`` has no CPU kernel ("The
    kernel with key (CPU, Undefined(AnyLayout), uint8) ... is not registered"). The context enables the flag.
    """
    flag = "FLAGS_use_stride_kernel"
    before = paddle.get_flags(flag)
    paddle.set_flags({flag: True})
    try:
        yield
    finally:
        paddle.set_flags(before)
