"""The model families of the installed library, and new models of them. Importing it imports no framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from . import checks, degrees, library
from .family import Conversion, Family

FAMILIES: Mapping[str, Family] = library.families.FAMILIES
CONVERSIONS: Mapping[str, Conversion] = library.families.CONVERSIONS


def titles_of(condition: Callable[[Family], bool]) -> str:
    """The families of which ``condition`` is true, for a sentence: ``Llama, Qwen2 and Qwen2-MoE``."""
    titles = [family.title for family in FAMILIES.values() if condition(family)]
    if not titles:
        return "no family"
    *others, last = titles
    return f"{', '.join(others)} and {last}" if others else last


def config_class(model_type: str) -> type:
    """``LlamaConfig``, ``Qwen2Config``, ... Imports the library."""
    return library.families.config_class(model_type)


def model_class(model_type: str, in_stages: bool = False) -> type:
    """``LlamaForCausalLM``, ...; ``LlamaForCausalLMPipe``, ... ``in_stages``. Imports the library."""
    return library.families.model_class(model_type, in_stages)


def set_seed(seed: int) -> None:
    """Seed the random numbers of this process and of the layers that processes share. Imports the library."""
    importlib.import_module(f"{library.installed()}.trainer").set_seed(seed)


def new_model(config):
    """The library's model of ``config`` (``LlamaConfig``, ...) with random weights. Imports the library.

    An embedding may be zero, without a gradient, for the padding token, which may be the end-of-text token:
    while the model is made, the configuration names none. Some models set ``initializer_range``, which stays
    as it was. UserError for a model that this machine cannot hold.
    """
    checks.check_memory(FAMILIES[config.model_type], config)
    padding, deviation = config.pad_token_id, config.initializer_range
    config.pad_token_id = None
    model = model_class(config.model_type, degrees.pipeline_parallel(config) > 1)(config)
    config.pad_token_id, config.initializer_range = padding, deviation
    library.adapter.draw_weights(model)
    return model


def cast(model, dtype: str):
    """``model.to(dtype=dtype)`` for what is not of integers, such as GPT's mask; returns ``model``."""
    integers = [
        (layer, name, buffer.clone())
        for layer in model.sublayers(include_self=True)
        for name, buffer in layer._buffers.items()
        if buffer is not None and not buffer.is_floating_point()
    ]
    model.to(dtype=dtype)
    for layer, name, buffer in integers:
        layer._buffers[name] = buffer
    return model
