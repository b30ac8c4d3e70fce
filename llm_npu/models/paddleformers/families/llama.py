"""Llama: Llama 1 to 3.2, Code Llama, TinyLlama."""

from dataclasses import replace

from llm_npu.models.paddlenlp.families import llama

from .shared import layers

FAMILY = replace(
    llama.FAMILY,
    models=("LlamaForCausalLM", "LlamaForCausalLMPipe"),
    layers=layers("LLamaAttention", "LlamaModel"),
    unsupported_fields=(),
    rope_scalings=dict.fromkeys(("linear", "dynamic", "yarn", "llama3")),
    required_by_transformers={},
    fused_projections={},
)
