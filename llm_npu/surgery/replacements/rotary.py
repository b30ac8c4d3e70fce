"""Rotary position embedding of attention layers with ``paddle_fused.apply_rotary`` and ``rotary_mul``.

``llm_npu.models.family.VARIANTS`` describes the variants under ``rotary``.
"""

from __future__ import annotations

import paddle_fused
from llm_npu.surgery import multimodal_rotary, split_sequence
from llm_npu.surgery.batch import parts
from llm_npu.surgery.fusable_layers import fusable_layer
from llm_npu.surgery.registry import NotFused, Replacement, kernel


def example(layer, batch) -> list | None:
    rows, length = batch.rows, batch.length
    variant = fusable_layer(layer, "rotary").variant
    if variant == "vision":
        return multimodal_rotary.vision_example(layer, batch)
    if variant == "part of a head":
        size = layer.qk_rope_head_dim
        q = batch.empty(rows, length, layer.num_local_heads, size)
        cos, sin = (batch.table(1, rows, 1, length, size) for _ in range(2))
        return [lambda: rotate_part_of_heads(q, q, cos, sin, None)]
    size = layer.head_dim
    share = parts(getattr(layer, "q_proj", None))
    heads = layer.num_heads // share, layer.num_key_value_heads // share
    positions = split_sequence.whole_length(layer, length)
    if variant in TABLES_OF_TOKENS:
        q, k = (batch.empty(rows, n, length, size) for n in heads)
        cos, sin = (batch.table(rows, length, size) for _ in range(2))
        return [lambda: TABLES_OF_TOKENS[variant](q, k, cos, sin)]
    if variant == "heads first":
        q, k = (batch.empty(rows, n, length, size) for n in heads)
        cos, sin = (batch.table(positions, size) for _ in range(2))
        return [lambda: rotate_heads_first(q, k, cos, sin, batch.positions())]
    q, k = (batch.empty(rows, length, n, size) for n in heads)
    cos, sin = (batch.table(1, positions, 1, size) for _ in range(2))
    position_ids = FromZero() if batch.position_ids is None else batch.positions()
    return [lambda: rotate(q, k, cos, sin, position_ids)]


@kernel("rotary", known_as="npu_fused_rope", operator="apply_rotary", example=example)
def replace(layer) -> Replacement | NotFused | None:
    fusable = fusable_layer(layer, "rotary")
    if fusable is None:
        return None
    if fusable.variant == "decoder":
        return Replacement(arguments=name_positions, is_site=False)
    if fusable.variant == "three axes":
        return Replacement(forward=multimodal_rotary.joined_tables, is_site=False)
    if reason := fusable.overridden(layer):
        return NotFused(reason)
    if fusable.variant == "vision":
        return Replacement(calls={"apply_rotary_pos_emb_vision": multimodal_rotary.rotate_patches})
    if fusable.variant in TABLES_OF_TOKENS:
        if "apply_fused_rope" in type(layer).forward.__code__.co_names and layer.config.apply_rope_fusion:
            return NotFused("apply_rope_fusion selects a CUDA kernel, which ignores positions")
        name = "apply_rotary_pos_emb"
        if fusable.variant == "multimodal":
            name = "apply_multimodal_rotary_pos_emb"
        return Replacement(calls={name: TABLES_OF_TOKENS[fusable.variant]})
    if fusable.variant == "heads first":
        return Replacement(calls={"apply_rotary_pos_emb": rotate_heads_first})
    if not getattr(layer.config, "rope", True):
        return NotFused("the model has no rotary embedding")
    # PaddleNLP's fused rotary reads whole tables and ignores the positions.
    return Replacement(calls={"apply_rotary_pos_emb": rotate}, attributes={"use_fused_rope": False})


class FromZero:
    """Marks the positions 0, 1, 2, ... of every sequence, without a tensor.

    The tables are then read from their start, [1, S, 1, D], as ``fused_rope`` requires; it does not support
    gathered rows, [B, S, 1, D].
    """


def name_positions(layer, arguments: dict) -> dict:
    if arguments.get("position_ids") is None:
        return {**arguments, "position_ids": FromZero()}
    return arguments


def rotate(q, k, cos, sin, position_ids):
    """Replaces ``apply_rotary_pos_emb(q, k, cos, sin, position_ids)``."""
    if isinstance(position_ids, FromZero):
        position_ids = None
    return paddle_fused.apply_rotary(q, k, cos, sin, position_ids)


def rotate_heads_first(q, k, cos, sin, position_ids):
    """`rotate` for q and k [B, N, S, D], cos and sin [P, D], position_ids [B, S]."""
    cos, sin = (table[position_ids].unsqueeze(1) for table in (cos, sin))  # [B, 1, S, D]
    return paddle_fused.rotary_mul(q, cos, sin), paddle_fused.rotary_mul(k, cos, sin)


def rotate_tokens(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
    """`rotate` for q and k [B, N, S, D], and cos and sin [B, S, D] with a row per token."""
    return tuple(_heads_first(_rotated(x.transpose([0, 2, 1, 3]), cos, sin)) for x in (q, k))


def rotate_multimodal_tokens(q, k, cos, sin, *_of_upstream, **_named):
    """`rotate_tokens`; the arguments of upstream are sections of axes, which the tables have joined."""
    return rotate_tokens(q, k, cos, sin)


def rotate_interleaved_tokens(q, k, cos, sin, position_ids=None, unsqueeze_dim=1):
    """`rotate_tokens` for the pairs (x[2 i], x[2 i + 1]), as pairs (x[i], x[i + D/2]) of reordered x.

    ``fused_rope`` supports only the latter pairs. The results stay reordered: queries and keys have the same
    order, so their dot products do not change, and they are not used otherwise.
    """
    pairs = [0, 0, 0, q.shape[-1] // 2, 2]
    tokens = (x.reshape(pairs).transpose([0, 2, 1, 4, 3]).flatten(-2) for x in (q, k))
    return tuple(_heads_first(_rotated(x, cos, sin)) for x in tokens)


def rotate_part_of_heads(q, k, cos, sin, position_ids, apply_rope_fusion=False):
    """`rotate_interleaved_tokens` for q and k [B, S, N, D], tables [1, B, 1, S, D], a key for all heads."""
    heads = k.shape[2]
    pairs = [0, 0, 0, q.shape[-1] // 2, 2]
    cos, sin = (table.reshape([*q.shape[:2], q.shape[-1]]) for table in (cos, sin))
    q, k = (
        _rotated(x.reshape(pairs).transpose([0, 1, 2, 4, 3]).flatten(-2), cos, sin) for x in (q, k[:, :, :1])
    )
    return q, k.expand([-1, -1, heads, -1])


def _rotated(x, cos, sin):
    """x [B, S, N, D] rotated by cos and sin [B, S, D], with a row per token.

    All tokens are rotated as one sequence, [1, B * S, N, D], because ``fused_rope`` has one table per batch.
    """
    batch, length, heads, size = x.shape
    cos, sin = (table.astype(x.dtype).expand([batch, -1, -1]) for table in (cos, sin))
    cos, sin = (table.reshape([1, batch * length, 1, size]) for table in (cos, sin))
    return paddle_fused.rotary_mul(x.reshape([1, batch * length, heads, size]), cos, sin).reshape(x.shape)


def _heads_first(x):
    return x.transpose([0, 2, 1, 3])


TABLES_OF_TOKENS = {
    "table of tokens": rotate_tokens,
    "interleaved table of tokens": rotate_interleaved_tokens,
    "part of a head": rotate_part_of_heads,
    "multimodal": rotate_multimodal_tokens,
}
