"""Rejects configurations that are invalid, or that the library's classes would compute wrongly.

The classes read some fields of config.json and ignore others. A field that requests something the class does
not implement is rejected by name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.models.family import Family

from . import degrees, settings
from .library import names

# Fields that determine the number and shapes of the parameters.
PARAMETER_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
SIZES = (*PARAMETER_SIZES, "max_position_embeddings")
INTEGERS = ("head_dim", "sliding_window")  # even if the family has no default
NULLABLE = ("head_dim", "sliding_window", "num_key_value_heads", "q_lora_rank")  # null has a meaning
LARGEST = 1 << 53  # largest size; larger values overflow
MOST_LAYERS = 100_000  # classes and planner create a list of them
NUMBERS = ("rms_norm_eps", "rope_theta", "initializer_range")
LAYER_OBJECTS = 20_000  # bytes of Python objects per layer or expert, regardless of its sizes


def check_file(family: Family, fields: Mapping[str, object], file: Path) -> None:
    """Raise UserError if ``file``, a config.json, needs something that the class does not support."""
    library = f"{names.TITLE}'s {family.name}"
    settings.fields.check(family, fields, file, library)
    settings.rotary.check(family, fields, file, library)
    for name in family.unsupported_fields:
        if fields.get(name):
            raise UserError(f"{file} sets {name}, which {library} does not have")
    if "decoder_sparse_step" not in family.defaults and fields.get("decoder_sparse_step", 1) != 1:
        raise UserError(
            f"{file} has decoder_sparse_step {fields['decoder_sparse_step']}, but {library} has experts in "
            "every layer"
        )
    activation = fields.get("hidden_act", family.activations[0])
    if activation not in family.activations:
        accepted = " or ".join(family.activations)
        raise UserError(f"{file} has hidden_act {activation!r:.40}, but {library} supports only {accepted}")
    head_dim, hidden, heads = (fields.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    sizes = [size for size in (head_dim, hidden, heads) if size]
    if not all(isinstance(size, int) for size in sizes):
        return  # check_sizes rejects them
    if "head_dim" not in family.defaults and len(sizes) == 3 and head_dim * heads != hidden:
        raise UserError(
            f"{file} has head_dim {head_dim}, but {library} has hidden_size / num_attention_heads = "
            f"{hidden} / {heads}"
        )


def check_sizes(family: Family, config, name: str) -> None:
    """Raise UserError if the sizes of a ``LlamaConfig``, ``Qwen2Config``, ... are inconsistent."""
    for size in (*SIZES, *family.expert_fields):
        value = getattr(config, size)
        if size == "num_key_value_heads" and value is None:  # as many as heads
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < LARGEST:
            raise UserError(f"{name}: {size} is {value!r:.40}, but must be a whole number of 1 or more")
    if config.num_hidden_layers > MOST_LAYERS:
        raise UserError(
            f"{name}: num_hidden_layers is {config.num_hidden_layers}, but must be {MOST_LAYERS} or less"
        )
    for field in NUMBERS:
        value = getattr(config, field, 1.0)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise UserError(f"{name}: {field} is {value!r:.40}, but must be a number greater than 0")
    for field, default in {**dict.fromkeys(INTEGERS), **family.defaults}.items():
        _check_kind(name, field, default, getattr(config, field, default))
    pairs = [("num_attention_heads", "num_key_value_heads")]
    if config.num_key_value_heads is None:
        pairs = []
    if "head_dim" not in family.defaults:
        pairs.insert(0, ("hidden_size", "num_attention_heads"))
    for whole, part in pairs:
        if getattr(config, whole) % getattr(config, part):
            raise UserError(
                f"{name}: {whole} {getattr(config, whole)} is not a multiple of {part} "
                f"{getattr(config, part)}"
            )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if "rotary" in family.layers and (head_dim % 2 or head_dim < 1):
        raise UserError(
            f"{name}: the head size must be even (the rotary embedding rotates pairs) and greater than 0; "
            f"it is {head_dim}"
        )
    if family.experts:
        chosen, number = (
            (field, getattr(config, field)) for field in (family.experts.per_token, family.experts.number)
        )
        if chosen[1] > number[1]:
            raise UserError(f"{name}: {chosen[0]} {chosen[1]} is more than {number[0]} {number[1]}")


def _check_kind(name: str, field: str, default: object, value: object) -> None:
    """Raise UserError if ``value`` does not have the type of the field's default."""
    if isinstance(default, bool) or (default is None and field not in INTEGERS):
        return  # settings.fields checks switches
    number = isinstance(value, int) or (isinstance(default, float) and isinstance(value, float))
    if value is None and field in NULLABLE:
        return
    if isinstance(value, bool) or not number or not 0 <= value < LARGEST:
        kind = "a number" if isinstance(default, float) else "a whole number"
        raise UserError(f"{name}: {field} is {value!r:.40}, but must be {kind} of 0 or more")


def check_memory(family: Family, config) -> None:
    """Raise UserError if the weights exceed this machine's memory, which would make it swap until it hangs.

    A card's allocator reports its own errors, and the weights of a dry run take no memory.
    """
    import paddle

    import virtual_npu

    on_host = virtual_npu.is_active() or paddle.device.get_device() == "cpu"
    if virtual_npu.is_dry() or not on_host:
        return
    parts = degrees.tensor_parallel(config) * degrees.pipeline_parallel(config)
    needed = least_bytes(family, config) // parts
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > has:
        raise UserError(
            f"the weights of this {family.name} need {needed >> 30:,} GiB, but this machine has "
            f"{has >> 30:,}; check its config.json"
        )


def least_bytes(family: Family, config) -> int:
    """A lower bound on the bytes of the model in float32: its large matrices and its layers."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    experts = getattr(config, family.experts.number) if family.experts else 1
    inner = getattr(config, family.experts.size if family.experts else "intermediate_size")
    tables = 2 * config.max_position_embeddings * (hidden // config.num_attention_heads)
    layer = 2 * hidden * hidden + experts * 3 * hidden * inner + tables
    return 4 * (config.vocab_size * hidden + layers * layer) + layers * experts * LAYER_OBJECTS
