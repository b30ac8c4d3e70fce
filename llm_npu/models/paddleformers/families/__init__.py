"""The model families of PaddleFormers, one module each, and their classes.

Importing it imports no framework.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from llm_npu.models.family import Conversion, Family

from . import deepseek_v3, ernie4_5, ernie4_5_moe, llama, qwen2, qwen3, qwen3_moe

FAMILIES: Mapping[str, Family] = {
    module.FAMILY.model_type: module.FAMILY
    for module in (llama, qwen2, qwen3, qwen3_moe, ernie4_5, ernie4_5_moe, deepseek_v3)
}

CONVERSIONS: Mapping[str, Conversion] = {}


def config_class(model_type: str) -> type:
    """``LlamaConfig``, ``Qwen3Config``, ... Imports paddleformers."""
    return _of_library(model_type, "configuration", "Config")


def model_class(model_type: str, in_stages: bool = False) -> type:
    """``LlamaForCausalLM``, ...; ``LlamaForCausalLMPipe``, ... ``in_stages``. Imports paddleformers."""
    return _of_library(model_type, "modeling", f"ForCausalLM{'Pipe' if in_stages else ''}")


def _of_library(model_type: str, module: str, suffix: str) -> type:
    from llm_npu.patches import paddleformers as patches  # it imports paddle

    patches.apply()
    found = importlib.import_module(f"paddleformers.transformers.{model_type}.{module}")
    return getattr(found, FAMILIES[model_type].name + suffix)
