"""Named models for random initialisation, and the configuration of a local directory."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

CONFIG_FILE = "config.json"
WEIGHTS = "*.safetensors"

# Fields of LlamaConfig that differ from its defaults.
PRESETS: dict[str, dict[str, object]] = {
    # 9.3 million parameters; the head size of 64 is what the fused rotary embedding asks for.
    "llama-tiny": {
        "vocab_size": 8192,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "max_position_embeddings": 1024,
    },
    # Layers of the 110M model of karpathy/llama2.c (README, table of models). That one has 32000 tokens and
    # one matrix for embedding and lm_head; half the tokens and two matrices come to the same size.
    "llama-110m": {
        "vocab_size": 16384,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
    },
    # TinyLlama, arXiv 2401.02385, table 1.
    "tinyllama-1.1b": {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
    },
    # Llama, arXiv 2302.13971, table 2.
    "llama-7b": {"rms_norm_eps": 1e-6},
    "llama-13b": {
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "rms_norm_eps": 1e-6,
    },
    # Llama 2, arXiv 2307.09288, table 1; the feed-forward widths are those of the released models.
    "llama2-7b": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "llama2-13b": {
        "hidden_size": 5120,
        "intermediate_size": 13824,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
    "llama2-70b": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
    # Llama 3, arXiv 2407.21783, table 3; 8192 positions before the context was extended.
    "llama3-8b": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
    },
    "llama3-70b": {
        "vocab_size": 128256,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
    },
}

# The names under which PaddleNLP's scripts know the same shapes.
ALIASES = {
    "facebook/llama-7b": "llama-7b",
    "facebook/llama-13b": "llama-13b",
    "meta-llama/Llama-2-7b": "llama2-7b",
    "meta-llama/Llama-2-13b": "llama2-13b",
    "meta-llama/Llama-2-70b": "llama2-70b",
    "meta-llama/Meta-Llama-3-8B": "llama3-8b",
    "meta-llama/Meta-Llama-3-70B": "llama3-70b",
}


def config_for(run):
    """The ``LlamaConfig`` of a ``RunConfig``: its model with the run's fused operators and length.

    ValueError as in ``model_config``, and for a run that this model cannot do (``config.check_model``).
    """
    from paddlenlp.transformers.configuration_utils import LlmMetaConfig

    from .config import check_model

    config = model_config(run.model.model_name_or_path, num_hidden_layers=run.model.num_hidden_layers)
    check_model(run, config)
    LlmMetaConfig.set_llm_config(config, run.training)
    config.fuse_attention_qkv = run.model.fuse_attention_qkv
    config.fuse_attention_ffn = run.model.fuse_attention_ffn
    config.use_fast_layer_norm = run.model.use_fast_layer_norm
    config.seq_length = run.data.max_seq_length
    return config


def model_config(name_or_path: str, **overrides):
    """The ``LlamaConfig`` of a preset or of a local directory with a config.json; never a download.

    ``overrides`` replace fields (``None`` leaves the field as it is). Imports paddlenlp.
    ValueError for an unknown name (naming the presets and the nearest), for a directory without a readable
    config.json, for another architecture than Llama, and for fields that do not fit each other.
    """
    from paddlenlp.transformers import LlamaConfig

    name = ALIASES.get(name_or_path, name_or_path)
    if name in PRESETS:
        fields = dict(PRESETS[name])
    elif Path(name).is_dir():
        fields = _read(Path(name))
    else:
        raise ValueError(_unknown(name_or_path))
    fields |= {field: value for field, value in overrides.items() if value is not None}
    fields = {"architectures": ["LlamaForCausalLM"]} | fields
    try:
        config = LlamaConfig.from_dict(fields)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"the configuration of {name_or_path} does not make a Llama: {error}") from error
    _check(config, name_or_path)
    return config


def has_weights(path: str) -> bool:
    """Whether ``path`` is a directory that holds model weights (safetensors)."""
    return Path(path).is_dir() and next(Path(path).glob(WEIGHTS), None) is not None


def is_preset(name: str) -> bool:
    """Whether ``name`` is a preset, or the name PaddleNLP's scripts have for one."""
    return name in PRESETS or name in ALIASES


def _read(directory: Path) -> dict[str, object]:
    file = directory / CONFIG_FILE
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"the model directory {directory} has no {CONFIG_FILE}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{file} must hold a JSON object, not a {type(fields).__name__}")
    kind = fields.get("model_type") or "one that names no model_type"
    if kind != "llama":
        raise ValueError(f"{file} describes {kind}, but this script trains model_type llama")
    _refuse_what_paddlenlp_ignores(fields, file)
    return fields


def _refuse_what_paddlenlp_ignores(fields: dict, file: Path) -> None:
    """PaddleNLP's Llama has no such layer or rule, and would compute something else in silence."""
    for name in ("attention_bias", "mlp_bias"):
        if fields.get(name):
            raise ValueError(f"{file} sets {name}, which PaddleNLP's Llama does not have")
    activation = fields.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"{file} asks for hidden_act {activation}, but PaddleNLP's Llama has silu only")
    scaling = fields.get("rope_scaling")
    kind = (scaling.get("rope_type") or scaling.get("type")) if isinstance(scaling, dict) else scaling
    if kind not in (None, "llama3", "default"):
        raise ValueError(f"{file} asks for rope_scaling {kind}, but PaddleNLP's Llama reads llama3 only")
    head_dim, hidden, heads = (fields.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads"))
    if head_dim and hidden and heads and head_dim * heads != hidden:
        raise ValueError(
            f"{file} has head_dim {head_dim}, but PaddleNLP's Llama has hidden_size / num_attention_heads = "
            f"{hidden} / {heads}"
        )


def _check(config, name: str) -> None:
    for field in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
    ):
        value = getattr(config, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}: {field} is {value!r}, but must be a whole number of 1 or more")
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


def _unknown(name: str) -> str:
    nearest = difflib.get_close_matches(name.rsplit("/", 1)[-1].lower(), PRESETS, n=1, cutoff=0.4)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return (
        f"{name!r} is neither a preset ({', '.join(PRESETS)}) nor a local directory with a {CONFIG_FILE}, "
        f"and nothing is downloaded.{hint}"
    )
