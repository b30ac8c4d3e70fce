"""The model families of PaddleNLP, one module each, and their classes. Importing it imports no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llm_npu.models.family import Conversion, Family
from llm_npu.models.paddlenlp import checks, internlm2

from . import llama, mistral, mixtral, qwen2, qwen2_moe

FAMILIES: Mapping[str, Family] = {
    module.FAMILY.model_type: module.FAMILY for module in (llama, qwen2, mistral, mixtral, qwen2_moe)
}
CONVERSIONS: Mapping[str, Conversion] = {internlm2.MODEL_TYPE: internlm2.CONVERSION}


def titles_of(condition: Callable[[Family], bool]) -> str:
    """The families of which ``condition`` is true, for a sentence: ``Llama, Qwen2 and Qwen2-MoE``."""
    *others, last = (family.title for family in FAMILIES.values() if condition(family))
    return f"{', '.join(others)} and {last}" if others else last


def config_class(model_type: str) -> type:
    """``LlamaConfig``, ``Qwen2Config``, ... Imports paddlenlp."""
    from paddlenlp import transformers

    return getattr(transformers, f"{FAMILIES[model_type].name}Config")


def model_class(model_type: str, in_stages: bool = False) -> type:
    """``LlamaForCausalLM``, ...; ``LlamaForCausalLMPipe``, ... ``in_stages``. Imports paddlenlp."""
    from paddlenlp import transformers

    return getattr(transformers, f"{FAMILIES[model_type].name}ForCausalLM{'Pipe' if in_stages else ''}")


def new_model(config):
    """PaddleNLP's model of ``config`` (``LlamaConfig``, ...) with random weights. Imports paddlenlp.

    Mistral's embedding would be zero, without a gradient, for the padding token, which may be the end-of-text
    token: while the model is made, the configuration names none. UserError for a model that this machine
    cannot hold.
    """
    checks.check_memory(FAMILIES[config.model_type], config)
    padding, config.pad_token_id = config.pad_token_id, None
    model = model_class(config.model_type, config.pipeline_parallel_degree > 1)(config)
    config.pad_token_id = padding
    return model
