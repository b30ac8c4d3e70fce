"""Weights that depend on their names only.

Two models with the same parameters thus compute the same function, whatever their classes, dtypes and
devices. Every weight is representable in bfloat16, so that one float64 truth serves all dtypes.
"""

from __future__ import annotations

import functools
import zlib

import numpy as np
import paddle
import paddle.distributed as dist

VOCABULARY = 128


def fill(model) -> None:
    """Gives every parameter of ``model`` its values."""
    with paddle.no_grad():
        for name, parameter in model.named_parameters():
            values = paddle.to_tensor(initial(name, tuple(parameter.shape)))
            if parameter.is_dist():
                values = dist.shard_tensor(values, parameter.process_mesh, parameter.placements)
                paddle.assign(values.astype(parameter.dtype), parameter)
            else:
                parameter.set_value(values.astype(parameter.dtype))


@functools.cache
def initial(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The initial values of the parameter ``name``, float32 that bfloat16 holds exactly."""
    noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    if "norm" in name:
        return in_bfloat16(1 + 0.2 * noise)
    if ".gate.weight" in name:  # of a router: experts far apart, so that no rounding makes another choice
        return in_bfloat16(noise)
    return in_bfloat16(0.1 * noise)


def in_bfloat16(values: np.ndarray) -> np.ndarray:
    """``values`` rounded to bfloat16, to nearest even, as float32."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
