"""SwiGLU of feed-forward layers with ``paddle_fused.swiglu``.

``llm_npu.models.family.VARIANTS`` describes the variants under ``swiglu``.
"""

from __future__ import annotations

import paddle_fused
from llm_npu.surgery.batch import parts
from llm_npu.surgery.fusable_layers import fusable_layer
from llm_npu.surgery.moe.experts import feed_forward, projections
from llm_npu.surgery.registry import NotFused, Replacement, kernel

SILU = ("SiLUActivation", "Silu")  # in PaddleNLP, in Paddle


def example(layer, batch) -> list:
    """For a feed-forward layer or an expert."""
    gate, up, _ = projections(layer)
    x = batch.empty(batch.rows, batch.length, gate.weight.shape[-1] // parts(gate))
    return [lambda: paddle_fused.swiglu(x) if up is None else paddle_fused.swiglu(x, x)]


@kernel("swiglu", known_as="npu_fused_swiglu", operator="swiglu", example=example)
def replace(layer) -> Replacement | NotFused | None:
    fusable = fusable_layer(layer, "swiglu")
    if fusable is None:
        return None
    if reason := fusable.overridden(layer):
        return NotFused(reason)
    if fusable.variant == "function":
        return Replacement(calls={"swiglu": paddle_fused.swiglu})
    is_silu = layer.fuse_swiglu if fusable.variant == "act_fn" else type(layer.act_fn).__name__ in SILU
    if not is_silu:
        return NotFused("its activation is not silu")
    if getattr(layer, "moe_dropout_prob", 0) > 0:
        return NotFused("it applies dropout to activations (moe_dropout_prob)")
    if fusable.variant == "act_fn":
        return Replacement(attributes={"act_fn": paddle_fused.swiglu})
    return Replacement(forward=feed_forward)
