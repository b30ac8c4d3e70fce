"""PaddleFormers' RMSNorm where Paddle has no kernel for it."""

from __future__ import annotations

import functools

import paddle

from .. import incubate


@functools.cache
def supply_rms_norm() -> None:
    """PaddleFormers 1.1 and 1.2: every model fails with its default ``fuse_rms_norm`` ("The kernel
    `fused_rms_norm_ext` is not registered").

    ``nn/norm.py`` calls a kernel that only CUDA builds of Paddle have. With the patch ``fuse_rms_norm`` means
    ``paddle_fused.rms_norm``.
    """
    if paddle.is_compiled_with_cuda():
        return
    from paddleformers.nn import norm

    norm.fused_rms_norm_ext = incubate.fused_rms_norm_ext
