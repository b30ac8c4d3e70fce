"""RMSNorm of decoders with ``paddle_fused.rms_norm``."""

from __future__ import annotations

import paddle_fused
from llm_npu.surgery.fusable_layers import forward_of
from llm_npu.surgery.registry import NotFused, Replacement, kernel


def example(layer, batch) -> list:
    weight = layer.weight
    x = batch.empty(batch.rows, batch.length, *weight.shape, dtype=weight.dtype)
    return [lambda: forward(layer, x)]


@kernel("rms_norm", known_as="npu_fused_rmsnorm", operator="rms_norm", example=example)
def replace(layer) -> Replacement | NotFused | None:
    return forward_of(layer, "rms_norm", VARIANTS)


def forward(self, hidden_states):
    return _normalised(hidden_states, self.weight, self.variance_epsilon)


def forward_of_one_more(self, hidden_states):
    return _normalised(hidden_states, self.weight + 1, self.variance_epsilon)


def _normalised(hidden_states, weight, epsilon: float):
    if hidden_states.dtype == weight.dtype:
        return paddle_fused.rms_norm(hidden_states, weight, epsilon)
    # Mixed precision, for example a float32 weight and bfloat16 activations: the upstream layers return the
    # weight's dtype, and multiply before they round. CANN does not support this combination.
    wide = paddle_fused.rms_norm(hidden_states.astype("float32"), weight.astype("float32"), epsilon)
    return wide.astype(weight.dtype)


def forward_of_stage(self, inputs):
    """The forward of a pipeline stage; ``inputs`` are hidden states, or a tuple that begins with them."""
    return forward(self, inputs[0] if isinstance(inputs, tuple) else inputs)


VARIANTS = {"forward": forward, "first of a tuple": forward_of_stage, "one more": forward_of_one_more}
