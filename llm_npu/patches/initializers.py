"""Patches for the initial values of weights."""

from __future__ import annotations

import functools

import paddle
from paddle.nn import initializer

# Their kernels uniform and truncated_gaussian_random are registered by paddle-custom-npu for float32 only.
FLOAT32_ONLY = (
    initializer.uniform.UniformInitializer,
    initializer.xavier.XavierInitializer,
    initializer.kaiming.MSRAInitializer,
    initializer.normal.TruncatedNormalInitializer,
)


@functools.cache
def fix_bfloat16_initializers() -> None:
    """Paddle 3.0 to 3.3: bfloat16 weights are initialized on the host CPU instead of the NPU.

    The initializers request uniform and truncated normal numbers in bfloat16, for which the plugin has no
    kernels. Under ``VIRTUAL_NPU_STRICT=1`` the first ``Linear`` is refused. The patch draws float32 numbers
    on npu and casts them, as Paddle does for float16 weights.
    """
    for kind in FLOAT32_ONLY:
        kind.forward = _in_float32(kind.forward)


def _in_float32(upstream):
    @functools.wraps(upstream)
    def forward(self, var, block=None):
        if not _is_bfloat16_on_npu(var):
            return upstream(self, var, block)
        wide = paddle.empty(var.shape, "float32")
        upstream(self, wide, block)
        wide.astype(var.dtype)._share_underline_tensor_to(var)
        return None

    return forward


def _is_bfloat16_on_npu(var) -> bool:
    """Weights are created on the current device. Values of captured programs are not on a device yet."""
    return (
        isinstance(var, paddle.Tensor)
        and var.dtype == paddle.bfloat16
        and paddle.device.get_device().startswith("npu")
    )
