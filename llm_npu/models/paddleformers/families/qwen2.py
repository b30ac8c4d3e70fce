"""Qwen2 and Qwen2.5."""

from dataclasses import replace

from llm_npu.models.paddlenlp.families import qwen2

from .shared import JOINED_PROJECTIONS, ROPE_SCALINGS, layers

FAMILY = replace(
    qwen2.FAMILY,
    models=("Qwen2ForCausalLM", "Qwen2ForCausalLMPipe"),
    layers=layers("Qwen2Attention", "Qwen2Model"),
    unsupported_fields=(),
    reads=("sliding_window", "use_sliding_window", "layer_types", "mlp_bias"),
    rope_scalings=ROPE_SCALINGS,
    required_by_transformers={},
    fused_projections=JOINED_PROJECTIONS,
    projections_on_request=False,
)
