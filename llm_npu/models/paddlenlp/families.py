"""The families of models: PaddleNLP's classes for each ``model_type``, and what they leave out.

PaddleNLP's classes read some fields of config.json and pass over others in silence. A field that asks for
something a class does not compute is refused here, with the field's name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Family:
    """``name``: what PaddleNLP's classes begin with.

    ``sizes``: fields that are whole numbers of 1 or more, beside those of every family.
    ``fuses_projections``: whether it reads ``fuse_attention_qkv`` and ``fuse_attention_ffn``.
    ``rope_scalings``: the kinds of ``rope_scaling`` that it computes. ``absent``: fields that it does not
    know, which must be empty. ``experts``: the field with their number. ``pipeline``: whether there is a
    class of its model that is cut into stages. ``drops_attention``: whether it reads ``attention_dropout``.
    """

    name: str
    sizes: tuple[str, ...] = ()
    fuses_projections: bool = True
    rope_scalings: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    experts: str | None = None
    pipeline: bool = False
    drops_attention: bool = False


FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        "Llama",
        rope_scalings=("linear", "dynamic", "llama3"),
        absent=("attention_bias", "mlp_bias"),
        pipeline=True,
    ),
    "qwen2": Family("Qwen2", absent=("use_sliding_window",), drops_attention=True),
    "mistral": Family("Mistral", fuses_projections=False, absent=("tie_word_embeddings",)),
    "mixtral": Family(
        "Mixtral",
        sizes=("num_local_experts", "num_experts_per_tok"),
        fuses_projections=False,
        absent=("tie_word_embeddings",),
        experts="num_local_experts",
        drops_attention=True,
    ),
    "qwen2_moe": Family(
        "Qwen2Moe",
        sizes=(
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "num_experts",
            "num_experts_per_tok",
        ),
        absent=("use_sliding_window", "mlp_only_layers", "tie_word_embeddings"),
        experts="num_experts",
        drops_attention=True,
    ),
}

LAYER_OBJECTS = 20_000  # bytes of Python's for each layer or expert, whatever its sizes
NUMBERS = ("rms_norm_eps", "rope_theta", "initializer_range")

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


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
    token: while the model is made, the configuration names none. ValueError for one that this machine cannot
    hold.
    """
    _check_memory(config)
    padding, config.pad_token_id = config.pad_token_id, None
    model = model_class(config.model_type, config.pipeline_parallel_degree > 1)(config)
    config.pad_token_id = padding
    return model


def _check_memory(config) -> None:
    """ValueError when the weights are more than the machine's memory: it would be at a standstill first.

    Of weights on a card the card's allocator says so, and those of a dry run take no memory.
    """
    import paddle

    from paddle_fused import virtual_npu

    on_host = virtual_npu.is_active() or paddle.device.get_device() == "cpu"
    if virtual_npu.is_dry() or not on_host:
        return
    parts = max(config.tensor_parallel_degree, 1) * max(config.pipeline_parallel_degree, 1)
    needed, has = least_bytes(config) // parts, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > has:
        raise ValueError(
            f"the weights of this {FAMILIES[config.model_type].name} need {needed >> 30:,} GiB, and this "
            f"machine has {has >> 30:,}; is its config.json right?"
        )


def least_bytes(config) -> int:
    """Bytes that a model of ``config`` in float32 needs at the least: large matrices, and its layers."""
    family = FAMILIES[config.model_type]
    hidden, layers = config.hidden_size, config.num_hidden_layers
    experts = getattr(config, family.experts) if family.experts else 1
    inner = "moe_intermediate_size" if "moe_intermediate_size" in family.sizes else "intermediate_size"
    tables = 2 * config.max_position_embeddings * (hidden // config.num_attention_heads)
    layer = 2 * hidden * hidden + experts * 3 * hidden * getattr(config, inner) + tables
    return 4 * (config.vocab_size * hidden + layers * layer) + layers * experts * LAYER_OBJECTS


def check_file(fields: Mapping[str, object], file: Path) -> None:
    """ValueError when the fields of ``file``, a config.json, ask for what PaddleNLP's class leaves out."""
    kind = fields.get("model_type") or "one that names no model_type"
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(
            f"{file} describes {kind}, but this script trains the model_type {', '.join(FAMILIES)}"
        )
    family = FAMILIES[kind]
    who = f"PaddleNLP's {family.name}"
    for name in family.absent:
        if fields.get(name):
            raise ValueError(f"{file} sets {name}, which {who} does not have")
    if fields.get("decoder_sparse_step", 1) != 1:
        raise ValueError(
            f"{file} has decoder_sparse_step {fields['decoder_sparse_step']}, but {who} has experts in every "
            "layer"
        )
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"{file} asks for hidden_act {activation}, but {who} is trained with silu only")
    scaling = fields.get("rope_scaling")
    rule = (scaling.get("rope_type") or scaling.get("type")) if isinstance(scaling, dict) else scaling
    if rule not in (None, "default", *family.rope_scalings):
        accepted = f"reads {', '.join(family.rope_scalings)} only" if family.rope_scalings else "has none"
        raise ValueError(f"{file} asks for rope_scaling {rule}, but {who} {accepted}")
    head_dim, hidden, heads = (fields.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    if head_dim and hidden and heads and head_dim * heads != hidden:
        raise ValueError(
            f"{file} has head_dim {head_dim}, but {who} has hidden_size / num_attention_heads = "
            f"{hidden} / {heads}"
        )


def check_sizes(config, name: str) -> None:
    """ValueError when the sizes of a ``LlamaConfig``, ``Qwen2Config``, ... do not make a model."""
    family = FAMILIES[config.model_type]
    for size in (*SIZES, *family.sizes):
        value = getattr(config, size)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}: {size} is {value!r}, but must be a whole number of 1 or more")
    for field in NUMBERS:
        value = getattr(config, field, 1.0)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ValueError(f"{name}: {field} is {value!r:.40}, but must be a number above 0")
    for whole, part in (
        ("hidden_size", "num_attention_heads"),
        ("num_attention_heads", "num_key_value_heads"),
    ):
        if getattr(config, whole) % getattr(config, part):
            raise ValueError(
                f"{name}: {whole} {getattr(config, whole)} is no multiple of {part} {getattr(config, part)}"
            )
    if config.hidden_size // config.num_attention_heads % 2:
        raise ValueError(f"{name}: the head size must be even, because the rotary embedding turns pairs")
    if family.experts and config.num_experts_per_tok > getattr(config, family.experts):
        raise ValueError(
            f"{name}: num_experts_per_tok {config.num_experts_per_tok} is more than "
            f"{family.experts} {getattr(config, family.experts)}"
        )
