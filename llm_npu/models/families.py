"""The installed library's model families, and new models of them. Importing it imports no framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from . import checks, degrees, library
from .family import Conversion, Family

FAMILIES: Mapping[str, Family] = library.families.FAMILIES
CONVERSIONS: Mapping[str, Conversion] = library.families.CONVERSIONS


def titles_of(condition: Callable[[Family], bool]) -> str:
    """The titles of families with a true ``condition``, such as ``Llama, Qwen2 and Qwen2-MoE``."""
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
    """Seed this process's generators and those of tensor parallel layers. Imports the library."""
    importlib.import_module(f"{library.installed()}.trainer").set_seed(seed)


def new_model(config):
    """Create the model of ``config`` (``LlamaConfig``, ...) with random weights. Imports the library.

    An embedding can be zero, and without a gradient, for the padding token, which may equal the end-of-text
    token; the padding token is therefore unset during construction. ``initializer_range``, which some models
    change, is restored. Raises UserError for a model that does not fit this machine.
    """
    checks.check_memory(FAMILIES[config.model_type], config)
    padding, deviation = config.pad_token_id, config.initializer_range
    config.pad_token_id = None
    model = model_class(config.model_type, degrees.pipeline_parallel(config) > 1)(config)
    config.pad_token_id, config.initializer_range = padding, deviation
    library.adapter.draw_weights(model)
    return model


def cast(model, dtype: str):
    """``model.to(dtype=dtype)``, except for integer tensors such as GPT's mask; returns ``model``."""
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
