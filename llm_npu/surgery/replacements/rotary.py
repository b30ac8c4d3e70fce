"""Rotary position embedding of PaddleNLP's attention layers, by ``paddle_fused.apply_rotary``.

``llm_npu.models.family.Way`` lists what its classes do, under ``rotary``.
"""

from __future__ import annotations

import paddle_fused
from llm_npu.surgery.batch import parts
from llm_npu.surgery.registry import NotFused, Replacement, kernel
from llm_npu.surgery.sites import site


def example(layer, batch) -> list:
    rows, length, size = batch.rows, batch.length, layer.head_dim
    share = parts(getattr(layer, "q_proj", None))
    heads = layer.num_heads // share, layer.num_key_value_heads // share
    if site(layer, "rotary").way == "heads first":
        q, k = (batch.empty(rows, n, length, size) for n in heads)
        cos, sin = (batch.table(length, size) for _ in range(2))
        return [lambda: rotate_heads_first(q, k, cos, sin, batch.positions())]
    q, k = (batch.empty(rows, length, n, size) for n in heads)
    cos, sin = (batch.table(1, length, 1, size) for _ in range(2))
    positions = FromZero() if batch.position_ids is None else batch.positions()
    return [lambda: rotate(q, k, cos, sin, positions)]


@kernel("rotary", known_as="npu_fused_rope", operator="apply_rotary", example=example)
def replace(layer) -> Replacement | NotFused | None:
    found = site(layer, "rotary")
    if found is None:
        return None
    if found.way == "decoder":
        return Replacement(arguments=name_positions, is_site=False)
    if reason := found.overridden(layer):
        return NotFused(reason)
    if found.way == "heads first":
        return Replacement(calls={"apply_rotary_pos_emb": rotate_heads_first})
    if not getattr(layer.config, "rope", True):
        return NotFused("the model has no rotary embedding")
    # PaddleNLP's own fused rotary takes whole tables and ignores the positions.
    return Replacement(calls={"apply_rotary_pos_emb": rotate}, attributes={"use_fused_rope": False})


class FromZero:
    """The positions 0, 1, 2, ... of every sequence, without a tensor.

    Tables are then read from their start, [1, S, 1, D], as ``fused_rope`` takes them; it takes no rows that
    were gathered, [B, S, 1, D].
    """


def name_positions(layer, arguments: dict) -> dict:
    if arguments.get("position_ids") is None:
        return {**arguments, "position_ids": FromZero()}
    return arguments


def rotate(q, k, cos, sin, position_ids):
    """In place of ``apply_rotary_pos_emb(q, k, cos, sin, position_ids)``."""
    if isinstance(position_ids, FromZero):
        position_ids = None
    return paddle_fused.apply_rotary(q, k, cos, sin, position_ids)


def rotate_heads_first(q, k, cos, sin, position_ids):
    """The same with q and k [B, N, S, D], cos and sin [P, D], position_ids [B, S]."""
    cos, sin = (table[position_ids].unsqueeze(1) for table in (cos, sin))  # [B, 1, S, D]
    return paddle_fused.rotary_mul(q, cos, sin), paddle_fused.rotary_mul(k, cos, sin)
