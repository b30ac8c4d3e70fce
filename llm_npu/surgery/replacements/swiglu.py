"""SwiGLU of PaddleNLP's MLPs, by ``paddle_fused.swiglu``."""

from __future__ import annotations

import paddle_fused
from llm_npu.surgery.batch import parts
from llm_npu.surgery.registry import NotFused, Replacement, kernel
from llm_npu.surgery.sites import overrides_forward, stock_class

# MLPs whose forward calls ``swiglu`` of its module, or ``act_fn`` (which is swiglu if ``fuse_swiglu``).
CALLING_SWIGLU = ("LlamaMLP", "LlamaMLPAuto", "LlamaMLPNet")
WITH_ACT_FN = ("Qwen2MLP", "Qwen2MoeMLP")
# MLPs that multiply ``act_fn`` of one projection by another.
MULTIPLYING = ("MistralMLP", "MixtralMLP")


def example(layer, batch) -> list:
    """Of a feed-forward layer, or of an expert, under PaddleNLP's names for the projections."""
    both = getattr(layer, "gate_up_fused_proj", None)
    gate = both if both is not None else layer.w1 if hasattr(layer, "w1") else layer.gate_proj
    x = batch.empty(batch.rows, batch.length, gate.weight.shape[-1] // parts(gate))
    return [lambda: paddle_fused.swiglu(x) if both is not None else paddle_fused.swiglu(x, x)]


@kernel("swiglu", known_as="npu_fused_swiglu", operator="swiglu", example=example)
def replace(layer) -> Replacement | NotFused | None:
    stock = stock_class(layer, (*CALLING_SWIGLU, *WITH_ACT_FN, *MULTIPLYING))
    if stock is None:
        return None
    if reason := overrides_forward(layer, stock):
        return NotFused(reason)
    if stock.__name__ in CALLING_SWIGLU:
        return Replacement(calls={"swiglu": paddle_fused.swiglu})
    if stock.__name__ in WITH_ACT_FN:
        if not layer.fuse_swiglu:
            return NotFused("its activation is not silu")
        return Replacement(attributes={"act_fn": paddle_fused.swiglu})
    if not _is_silu(layer.act_fn):
        return NotFused("its activation is not silu")
    return Replacement(forward=FORWARDS[stock.__name__])


def _is_silu(activation) -> bool:
    return type(activation).__name__ == "SiLUActivation"


def mistral(self, x):
    return self.down_proj(paddle_fused.swiglu(self.gate_proj(x), self.up_proj(x)))


def mixtral(self, x):
    return self.w2(paddle_fused.swiglu(self.w1(x), self.w3(x)))


FORWARDS = {"MistralMLP": mistral, "MixtralMLP": mixtral}
