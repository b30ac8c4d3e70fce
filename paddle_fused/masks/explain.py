"""Explains the plan of a mask: mode, computed fraction, bytes."""

from __future__ import annotations

from math import prod

import paddle

from ..ops.arguments import check_ints
from ..ops.attention.layout import check_rank
from .compiler import compile_mask
from .modes import NAMES, CannMode, compressed_mask, compressed_prefix_mask, mode_of
from .sequences import MaskPlan, Shapes, shapes_of
from .types import OPERATOR, Mask

BLOCK = 128  # CANN computes or skips blocks of this many rows and columns


def explain(
    mask: Mask | None, shape, key_shape=None, layout="BSND", cu_seqlens_q=None, cu_seqlens_k=None
) -> str:
    """The plan of the mask as text: mode, fraction of the scores computed, bytes.

    Args:
        shape: the query's shape, or a tensor.
        key_shape: the key's shape or a tensor, if the shape differs.
        layout, cu_seqlens_q, cu_seqlens_k: as in `flash_attention`.

    Raises ValueError for shapes that do not fit the layout, and the errors of `flash_attention`.
    """
    shape = _shape_of("shape", shape)
    key_shape = shape if key_shape is None else _shape_of("key_shape", key_shape)
    check_rank(OPERATOR, layout, {"query": shape, "key": key_shape})
    shapes = shapes_of(layout, shape, key_shape, cu_seqlens_q, cu_seqlens_k)
    plan = compile_mask(mask, shapes)
    mode = mode_of(plan)
    layout = "TND" if plan.packed else "BSND" if layout == "TND" else layout
    lines = [
        repr(mask),
        f"sparse_mode {mode.sparse_mode} ({NAMES[mode.sparse_mode]}), layout {layout}: "
        + (plan.why or mode.why),
    ]
    if mode.sparse_mode in (0, 4, 7, 8) and mode.mask != "none":
        lines.append(f"pre_tokens {mode.pre_tokens}, next_tokens {mode.next_tokens}")
    if plan.prefix is not None:
        lines.append(f"prefix {list(plan.prefix)}")
    lines.append(
        f"computes {computed_fraction(plan, shapes):.1%} of the scores, in blocks of {BLOCK} x {BLOCK}"
    )
    lines.append(f"mask: {mask_bytes(plan, mode):,} bytes (dense: {dense_bytes(mask, shapes):,} bytes)")
    return "\n".join(lines)


def _shape_of(name: str, shape) -> tuple[int, ...]:
    is_tensor = isinstance(shape, (paddle.Tensor, paddle.pir.Value))
    return check_ints("explain", name, shape.shape if is_tensor else shape)


def computed_fraction(plan: MaskPlan, shapes: Shapes) -> float:
    """The computed fraction of the score matrices [Sq, Skv] of all batch elements ([T, T] in layout TND)."""
    total = shapes.batch * shapes.query_len * shapes.key_len
    prefixes = plan.prefix or (0,) * (1 if plan.packed else shapes.batch)
    computed = sum(_computed(s, length) for length in prefixes for s in plan.sequences)
    return computed / total if total else 0.0


def _computed(s, prefix: int) -> int:
    """The number of scores in blocks that contain a key of the band or the prefix."""
    low, high = s.bounds
    computed = 0
    for row in range(0, s.query_len, BLOCK):
        rows = min(BLOCK, s.query_len - row)
        first, end = max(0, row + low), min(s.key_len, row + rows + high)
        if prefix > 0:
            first, end = 0, max(end, prefix)
        if end > first:
            computed += rows * (min(s.key_len, -(-end // BLOCK) * BLOCK) - first // BLOCK * BLOCK)
    return computed


def mask_bytes(plan: MaskPlan, mode: CannMode) -> int:
    """Bytes of the call's mask tensor. All calls on a device share a compressed mask."""
    if mode.mask == "none":
        return 0
    if mode.mask == "full":
        return prod(full_shape(plan.full, *plan.full_shape))
    return (compressed_mask() if mode.mask == "compressed" else compressed_prefix_mask()).nbytes


def dense_bytes(mask: Mask | None, shapes: Shapes) -> int:
    """Bytes of the mask as a dense tensor."""
    if mask is None:
        return 0
    return prod(full_shape(mask, shapes.query_len, shapes.key_len))


def full_shape(mask: Mask, query_len: int, key_len: int) -> tuple[int, ...]:
    """The shape of the dense mask: [Sq, Skv], or [B, N, Sq, Skv] if batch elements or heads differ."""
    heads = max((part.heads for part in mask.parts), default=1)
    if mask.batch_size is None and heads == 1:
        return query_len, key_len
    return mask.batch_size or 1, heads, query_len, key_len
