"""Llama: Llama 1 to 3.2, Code Llama, TinyLlama."""

from dataclasses import replace

from llm_npu.models.paddlenlp.families import llama

from .shared import ROPE_SCALINGS, layers

FAMILY = replace(
    llama.FAMILY,
    models=("LlamaForCausalLM", "LlamaForCausalLMPipe"),
    layers=layers("LLamaAttention", "LlamaModel"),
    # PaddleFormers itself ties the embeddings unless a config.json says otherwise; transformers does not.
    unsupported_fields=(),
    defaults=llama.DEFAULTS | {"attention_dropout": 0.0},
    reads=("attention_bias", "mlp_bias"),
    rope_scalings=ROPE_SCALINGS,
    required_by_transformers={},
    fused_projections={},
)
