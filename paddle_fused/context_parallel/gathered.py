"""Attention with gathered keys, for masks that ring attention does not support.

Every rank gathers the keys and values of the whole sequence and computes its own queries with them. Memory
per layer grows with S * Nkv * D of the whole sequence, and no transfer is hidden.

Legend: B batch, S tokens of the whole sequence, n ranks, C tokens of a chunk.
"""

from __future__ import annotations

from dataclasses import replace

import paddle
import paddle.distributed as dist
from paddle.autograd import PyLayer

import paddle_fused
from paddle_fused import masks
from paddle_fused.devices import is_captured
from paddle_fused.masks.types import Band, Dense, Documents, Intersection, Mask

from . import zigzag

OPERATOR = "gathered_attention"


def gathered_attention(
    query, key, value, mask: masks.Mask | None = None, *, group, scale: float | None = None
):
    """softmax(scale * Q K^T over the unmasked keys) V; the ranks of ``group`` share the sequence.

    All ranks call it together, with tensors of equal shapes.

    Args:
        query, key, value: as for `ring.ring_attention`, in zigzag order.
        mask: of the whole sequence: ``causal``, ``band``, ``documents`` and ``dense`` masks, and their
            intersections.
        group: the ranks that hold the sequence.
        scale: default 1 / sqrt(D).

    Returns:
        [B, S / n, N, Dv] in query's dtype. Gradients of keys and values are summed over ranks in float32.

    Raises:
        ValueError: for other masks, and as `paddle_fused.flash_attention`.
    """
    if is_captured(query):
        raise ValueError(
            f"{OPERATOR}: the call is part of a captured program; accepted: dygraph. Exclude this layer "
            "from paddle.jit.to_static."
        )
    rank, ranks = group.rank, group.nranks
    length = query.shape[1] * ranks
    size = zigzag.chunk_length(length, ranks)
    parts = [_part_of(mask, c * size, (c + 1) * size, length) for c in zigzag.chunks_of(rank, ranks)]
    key, value = (_gathered(x, group) for x in (key, value))
    outs = [
        paddle_fused.flash_attention(
            query[:, a * size : (a + 1) * size], key[:, :end], value[:, :end], part, scale=scale
        )
        for a, (part, end) in enumerate(parts)
    ]
    return paddle.concat(outs, 1)


def _gathered(x, group):
    return x if group.nranks == 1 else _Gather.apply(x, group)


class _Gather(PyLayer):
    """The tokens of all ranks, in the order of the sequence."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts: list = []
        dist.all_gather(parts, x.contiguous(), group=group)
        return zigzag.merge(parts)

    @staticmethod
    def backward(ctx, gradient):
        group = ctx.group
        wide = gradient if gradient.dtype == paddle.float64 else gradient.astype("float32")
        parts = [zigzag.split(wide, rank, group.nranks).contiguous() for rank in range(group.nranks)]
        own = paddle.empty_like(parts[0])
        dist.reduce_scatter(own, parts, group=group)
        return own.astype(gradient.dtype)


def _part_of(mask: Mask | None, start: int, stop: int, length: int) -> tuple[Mask | None, int]:
    """The mask of the queries from ``start`` to ``stop``, and the number of keys that they may see."""
    parts = () if mask is None else mask.parts
    ends = [min(length, stop + p.right) for p in parts if isinstance(p, Band) and p.right is not None]
    end = length if any(isinstance(p, Documents) for p in parts) else min(ends, default=length)
    cut = [_cut(part, start, stop, end, length) for part in parts]
    return (Intersection(tuple(cut)) if len(cut) > 1 else cut[0] if cut else None), end


def _cut(part: Mask, start: int, stop: int, end: int, length: int) -> Mask:
    if isinstance(part, Band):
        shift = end - stop  # by which "bottom_right" puts the queries too far
        left = None if part.left is None else part.left + shift
        right = None if part.right is None else part.right - shift
        return Band(left, right, "bottom_right")
    if isinstance(part, Dense) and list(part.hidden.shape[-2:]) == [length, length]:
        return Dense(part.hidden[..., start:stop, :end], part.invalid_rows)
    if isinstance(part, Documents) and part.rows == part.key_rows and part.query_start is None:
        part.check_lengths(length, length)
        return replace(part, query_start=start)
    raise ValueError(
        f"{OPERATOR}: the mask is {part!r} for {length} tokens; accepted: causal, band, documents "
        "and dense masks of the whole sequence. Write it as masks.dense(mask.to_dense(length))."
    )
