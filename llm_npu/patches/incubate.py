"""Supplies fused functions of Paddle that have no kernel in builds without CUDA.

ERNIE calls the functions by these names. ``apply`` is for programs that enable them with their own switches
(``fuse_rms_norm``, ``fuse_rope``), so it is not part of ``llm_npu.patches.apply``.
"""

from __future__ import annotations

import functools

import paddle
from paddle.incubate.nn import functional

import paddle_fused
from llm_npu.core.errors import UserError


def apply() -> None:
    """Supply the functions that the installed Paddle lacks; idempotent.

    Call it before modules import the functions by name.
    """
    if not paddle.is_compiled_with_cuda():
        supply_rms_norm()
        supply_rotary()


@functools.cache
def supply_rms_norm() -> None:
    """Paddle 3.1 to 3.3 without CUDA: "The kernel `fused_rms_norm_ext` is not registered"."""
    functional.fused_rms_norm_ext = fused_rms_norm_ext


@functools.cache
def supply_rotary() -> None:
    """Paddle 3.0 to 3.3 without CUDA: "The kernel `fused_rotary_position_embedding` is not registered"."""
    functional.fused_rotary_position_embedding = fused_rotary_position_embedding


def fused_rms_norm_ext(x, scale, epsilon=1e-5, name=None):
    """Return (y [..., H], 1 / rms [rows], float32), computed by ``paddle_fused.rms_norm``."""
    y, rstd = paddle_fused.compat.npu_rms_norm(x, scale.astype(x.dtype), epsilon)
    return y, rstd.flatten()


def fused_rotary_position_embedding(
    q,
    k=None,
    v=None,
    sin=None,
    cos=None,
    position_ids=None,
    use_neox_rotary_style=True,
    *,
    time_major=False,
    rotary_emb_base=10000.0,
):
    """Rotate q, k and v (each optional) with ``paddle_fused.rotary_mul``.

    Args:
        q, k, v: [B, S, N, D], or [S, B, N, D] if ``time_major``.
        sin, cos: [S, D] or [1, S, 1, D]. By default, the angle of pair i at position p is p * base^(-2 i /
            D).
        use_neox_rotary_style: as in Paddle, True means that pairs are adjacent elements.
    """
    if (sin is None) != (cos is None):
        raise UserError(
            "fused_rotary_position_embedding: received only one of sin and cos; accepted: both or neither"
        )
    axis = 0 if time_major else 1
    if cos is None:
        sin, cos = _tables(q.shape[axis], q.shape[-1], rotary_emb_base, use_neox_rotary_style)
    sin, cos = (_rows(table, position_ids, time_major).astype(q.dtype) for table in (sin, cos))
    mode = "interleave" if use_neox_rotary_style else "half"
    return tuple(x if x is None else paddle_fused.rotary_mul(x, cos, sin, mode) for x in (q, k, v))


def _tables(length: int, head_dim: int, base: float, adjacent: bool):
    """(sin, cos) for positions 0 to length - 1, both [S, D]."""
    frequencies = base ** (-paddle.arange(0, head_dim, 2, dtype="float32") / head_dim)
    angles = paddle.arange(length, dtype="float32").unsqueeze(-1) * frequencies
    angles = angles.repeat_interleave(2, axis=-1) if adjacent else paddle.concat([angles, angles], axis=-1)
    return angles.sin(), angles.cos()


def _rows(table, position_ids, time_major: bool):
    """Table rows at the positions, shaped to multiply q: [1 or B, S, 1, D], transposed if time_major."""
    table = table.reshape([-1, table.shape[-1]])
    rows = table.unsqueeze([0, 2]) if position_ids is None else table[position_ids].unsqueeze(2)
    return rows.transpose([1, 0, 2, 3]) if time_major else rows
