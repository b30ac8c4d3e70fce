"""RMSNorm of PaddleNLP's decoders, by ``paddle_fused.rms_norm``."""

from __future__ import annotations

import paddle_fused
from llm_npu.surgery.registry import NotFused, Replacement, kernel
from llm_npu.surgery.sites import overrides_forward, stock_class

CLASSES = (
    "LlamaRMSNorm",
    "LlamaRMSNormAuto",
    "LlamaRMSNormNet",
    "MistralRMSNorm",
    "MixtralRMSNorm",
    "Qwen2RMSNorm",
    "Qwen2MoeRMSNorm",
)


def example(layer, batch) -> list:
    weight = layer.weight
    x = batch.empty(batch.rows, batch.length, *weight.shape, dtype=weight.dtype)
    return [lambda: forward(layer, x)]


@kernel("rms_norm", known_as="npu_fused_rmsnorm", operator="rms_norm", example=example)
def replace(layer) -> Replacement | NotFused | None:
    stock = stock_class(layer, CLASSES)
    if stock is None:
        return None
    if reason := overrides_forward(layer, stock):
        return NotFused(reason)
    return Replacement(forward=forward)


def forward(self, hidden_states):
    weight, epsilon = self.weight, self.variance_epsilon
    if hidden_states.dtype == weight.dtype:
        return paddle_fused.rms_norm(hidden_states, weight, epsilon)
    # Mixed precision, such as a float32 weight under bfloat16 activations: the stock layers answer in the
    # weight's dtype, and multiply before they round. CANN knows no such combination.
    wide = paddle_fused.rms_norm(hidden_states.astype("float32"), weight.astype("float32"), epsilon)
    return wide.astype(weight.dtype)
