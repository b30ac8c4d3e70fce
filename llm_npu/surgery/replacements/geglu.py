"""GeGLU of feed-forward layers with ``paddle_fused.geglu``."""

from __future__ import annotations

import paddle_fused
from llm_npu.surgery.batch import parts
from llm_npu.surgery.fusable_layers import forward_of
from llm_npu.surgery.registry import NotFused, Replacement, kernel


def example(layer, batch) -> list:
    x = batch.empty(batch.rows, batch.length, layer.gate_proj.weight.shape[-1] // parts(layer.gate_proj))
    return [lambda: paddle_fused.geglu(x, x)]


@kernel("geglu", known_as="npu_fused_geglu", operator="geglu", example=example)
def replace(layer) -> Replacement | NotFused | None:
    return forward_of(layer, "geglu", {"forward": forward})


def forward(self, x):
    return self.down_proj(paddle_fused.geglu(self.gate_proj(x), self.up_proj(x)))
