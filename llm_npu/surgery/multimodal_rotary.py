"""Rotary position embeddings of vision-language models, for text with images and for patches.

Legend: B batch, S sequence, N heads, D head size.
"""

from __future__ import annotations

import numpy as np
import paddle

import paddle_fused


def joined_tables(self, x, position_ids):
    """The tables of three axes, [3, B, S, D], joined to one table [B, S, D] for all layers.

    ``mrope_section`` divides each half of D into sections; section i belongs to the axis i modulo 3. Upstream
    joins them again in each layer.
    """
    sections = list(self.config.rope_scaling["mrope_section"]) * 2
    tables = type(self).forward(self, x, position_ids)
    return tuple(
        paddle.concat([part[axis % 3] for axis, part in enumerate(table.split(sections, axis=-1))], axis=-1)
        for table in tables
    )


def tables_of_patches(embedding, places: np.ndarray) -> tuple:
    """cos and sin [S, D / 2], float32: for each patch the angles of its row, then those of its column.

    Args:
        embedding: returns the angles of the first n rows or columns, [n, D / 4].
        places: the row and column of each patch, [S, 2].
    """
    angles = embedding(int(places.max()) + 1)
    rows = paddle.to_tensor(places.ravel())
    return tuple(
        paddle.gather(table, rows).reshape([len(places), -1]) for table in (angles.cos(), angles.sin())
    )


def rotate_patches(q, k, cos, sin):
    """Replaces ``apply_rotary_pos_emb_vision``.

    Args:
        q, k: [B, S, N, D] or [S, N, D].
        cos, sin: float32 [S, D / 2], or [S, D] with equal halves.
    """
    *_, length, _, size = q.shape
    repeats = size // cos.shape[-1]
    cos, sin = (
        table.tile([1, repeats]).astype(q.dtype).reshape([1, length, 1, size]) for table in (cos, sin)
    )
    return tuple(
        paddle_fused.rotary_mul(x.reshape([-1, *x.shape[-3:]]), cos, sin).reshape(x.shape) for x in (q, k)
    )


def vision_example(layer, batch) -> list | None:
    """The calls of a vision attention layer; None if the images' sizes are unknown."""
    if not batch.patches:
        return None
    q = batch.empty(1, sum(batch.patches), layer.num_heads, layer.head_dim)
    table = paddle.empty([sum(batch.patches), layer.head_dim // 2], "float32")
    return [lambda: rotate_patches(q, q, table, table)]
