"""The model families of PaddleNLP, one module each, and their classes. Importing it imports no framework."""

from __future__ import annotations

from collections.abc import Mapping

from llm_npu.models.family import Conversion, Family
from llm_npu.models.paddlenlp import gpt2, internlm2

from . import gemma, gpt, llama, mistral, mixtral, qwen2, qwen2_moe

FAMILIES: Mapping[str, Family] = {
    module.FAMILY.model_type: module.FAMILY
    for module in (llama, qwen2, mistral, mixtral, qwen2_moe, gpt, gemma)
}
CONVERSIONS: Mapping[str, Conversion] = {
    conversion.model_type: conversion for conversion in (internlm2.CONVERSION, gpt2.CONVERSION)
}


def config_class(model_type: str) -> type:
    """``LlamaConfig``, ``Qwen2Config``, ... Imports paddlenlp."""
    from paddlenlp import transformers

    return getattr(transformers, f"{FAMILIES[model_type].name}Config")


def model_class(model_type: str, in_stages: bool = False) -> type:
    """``LlamaForCausalLM``, ...; ``LlamaForCausalLMPipe``, ... ``in_stages``. Imports paddlenlp."""
    from paddlenlp import transformers

    return getattr(transformers, f"{FAMILIES[model_type].name}ForCausalLM{'Pipe' if in_stages else ''}")
