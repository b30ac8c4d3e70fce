"""Llama: Llama 1 to 3.2, Code Llama, TinyLlama."""

from dataclasses import replace

from llm_npu.models.paddlenlp.families import llama

from .shared import ROPE_SCALINGS, layers

# PaddleFormers ties the embeddings of a Llama unless its configuration says otherwise.
UNTIED = {"tie_word_embeddings": False}

FAMILY = replace(
    llama.FAMILY,
    models=("LlamaForCausalLM", "LlamaForCausalLMPipe"),
    layers=layers("LLamaAttention", "LlamaModel"),
    defaults=llama.FAMILY.defaults | {"tie_word_embeddings": True},
    presets={name: UNTIED | fields for name, fields in llama.FAMILY.presets.items()},
    unsupported_fields=(),
    rope_scalings=ROPE_SCALINGS,
    required_by_transformers={},
    fused_projections={},
)
