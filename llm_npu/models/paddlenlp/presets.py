"""Named models for random initialisation, and the configuration of a local directory."""

from __future__ import annotations

import difflib
from pathlib import Path

from llm_npu.core.untrusted import plain_json

from . import stock_config
from .families import FAMILIES, check_file, check_sizes, config_class

CONFIG_FILE = "config.json"
WEIGHTS = "*.safetensors"

# What several sizes have in common.
_TINY_SIZES = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
}
_LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
_LLAMA_13B = {
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
}
_LLAMA_34B = {
    "hidden_size": 8192,
    "intermediate_size": 22016,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
}
_LLAMA_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
_LLAMA_3 = {
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
_LLAMA_3_1 = _LLAMA_3 | {
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_LLAMA_3_2 = _LLAMA_3_1 | {
    "rope_scaling": _LLAMA_3_1["rope_scaling"] | {"factor": 32.0},
    "tie_word_embeddings": True,
}

# Fields that differ from the defaults of the family's configuration; a Llama when no model_type is named.
PRESETS: dict[str, dict[str, object]] = {
    # 9.3 million parameters; the head size of 64 is what the fused rotary embedding asks for.
    "llama-tiny": _TINY_SIZES,
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
    "llama-13b": _LLAMA_13B | {"rms_norm_eps": 1e-6},
    # Llama 2, arXiv 2307.09288, table 1; the feed-forward widths are those of the released models.
    "llama2-7b": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "llama2-13b": _LLAMA_13B | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    # Never released; sizes of MindSpeed-LLM's examples/mcore/llama2/pretrain_llama2_34B_ptd_16p.sh.
    "llama2-34b": _LLAMA_34B | {"max_position_embeddings": 4096},
    "llama2-70b": _LLAMA_70B | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    # Llama 3, arXiv 2407.21783, table 3; 8192 positions before the context was extended.
    "llama3-8b": _LLAMA_3 | _LLAMA_8B,
    "llama3-70b": _LLAMA_3 | _LLAMA_70B,
    # Llama 3.1, in the same table, and Llama 3.2: the fields of the released models.
    "llama3.1-8b": _LLAMA_3_1 | _LLAMA_8B,
    "llama3.1-70b": _LLAMA_3_1 | _LLAMA_70B,
    "llama3.2-1b": _LLAMA_3_2
    | {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
    },
    "llama3.2-3b": _LLAMA_3_2
    | {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
    },
    # Code Llama, arXiv 2308.12950: a Llama 2 34B with longer rotary waves; fields of the released model.
    "codellama-34b": _LLAMA_34B | {"max_position_embeddings": 16384, "rope_theta": 1e6},
    # The size of llama-tiny with what is special in each family. Qwen2: grouped heads, biases of the
    # projections, one matrix for embedding and lm_head.
    "qwen2-tiny": _TINY_SIZES
    | {
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    "mistral-tiny": _TINY_SIZES | {"model_type": "mistral", "num_key_value_heads": 2, "rms_norm_eps": 1e-5},
    "mixtral-tiny": _TINY_SIZES
    | {
        "model_type": "mixtral",
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2-moe-tiny": _TINY_SIZES
    | {
        "model_type": "qwen2_moe",
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 4,
    },
    # Qwen1.5: the fields of the released model, which is one of Qwen2's classes.
    "qwen1.5-0.5b": {
        "model_type": "qwen2",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    # Qwen2, arXiv 2407.10671, table 1; the other fields are those of the released model.
    "qwen2-0.5b": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    # Qwen2.5, arXiv 2412.15115, table 1; the other fields are those of the released models.
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    "qwen2.5-3b": {
        "model_type": "qwen2",
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rope_theta": 1e6,
    },
    # Mistral 7B, arXiv 2310.06825, table 1, without its sliding window, which PaddleNLP does not compute.
    "mistral-7b": {
        "model_type": "mistral",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "sliding_window": None,
    },
    # Mixtral of experts, arXiv 2401.04088, table 1.
    "mixtral-8x7b": {"model_type": "mixtral", "max_position_embeddings": 32768},
    # The released Qwen1.5-MoE-A2.7B, whose sizes are the defaults of PaddleNLP's configuration.
    "qwen1.5-moe-a2.7b": {"model_type": "qwen2_moe"},
}

# The smallest preset of every family.
TINY = {
    "llama": "llama-tiny",
    "qwen2": "qwen2-tiny",
    "mistral": "mistral-tiny",
    "mixtral": "mixtral-tiny",
    "qwen2_moe": "qwen2-moe-tiny",
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
    "meta-llama/Meta-Llama-3.1-8B": "llama3.1-8b",
    "meta-llama/Meta-Llama-3.1-70B": "llama3.1-70b",
    "meta-llama/Llama-3.2-1B": "llama3.2-1b",
    "meta-llama/Llama-3.2-3B": "llama3.2-3b",
    "Qwen/Qwen1.5-0.5B": "qwen1.5-0.5b",
    "Qwen/Qwen2-0.5B": "qwen2-0.5b",
    "Qwen/Qwen2.5-3B": "qwen2.5-3b",
    "Qwen/Qwen2.5-0.5B": "qwen2.5-0.5b",
    "Qwen/Qwen2.5-7B": "qwen2.5-7b",
    "mistralai/Mistral-7B-v0.1": "mistral-7b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "Qwen/Qwen1.5-MoE-A2.7B": "qwen1.5-moe-a2.7b",
}


def model_config(name_or_path: str, **overrides):
    """The configuration of a preset or of a local directory with a config.json; never a download.

    ``overrides`` replace fields (``None`` leaves the field as it is). Imports paddlenlp.
    ValueError for an unknown name (naming the presets and the nearest), for a directory without a readable
    config.json, for a family or a field that PaddleNLP has no class for, and for sizes that do not fit each
    other.
    """
    fields = fields_of(name_or_path)
    fields |= {field: value for field, value in overrides.items() if value is not None}
    kind = fields["model_type"]
    name = FAMILIES[kind].name
    fields = {"architectures": [f"{name}ForCausalLM"]} | fields
    try:
        config = config_class(kind).from_dict(fields)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"the configuration of {name_or_path} does not make a {name}: {error}") from error
    check_sizes(config, name_or_path)
    return config


def model_type(name_or_path: str) -> str:
    """The family, a key of ``families.FAMILIES``. ValueError as in ``model_config``."""
    return fields_of(name_or_path)["model_type"]


def has_weights(path: str) -> bool:
    """Whether ``path`` is a directory that holds model weights (safetensors)."""
    return Path(path).is_dir() and next(Path(path).glob(WEIGHTS), None) is not None


def is_preset(name: str) -> bool:
    """Whether ``name`` is a preset, or the name PaddleNLP's scripts have for one."""
    return name in PRESETS or name in ALIASES


def fields_of(name_or_path: str) -> dict[str, object]:
    """The fields that a preset or a directory's config.json states, with its ``model_type``.

    Imports no framework; what is not stated is the default of PaddleNLP's configuration class. ValueError as
    in ``model_config``, but for sizes that do not fit each other.
    """
    name = ALIASES.get(name_or_path, name_or_path)
    if name in PRESETS:
        return {"model_type": "llama"} | PRESETS[name]
    if name and Path(name).is_dir():
        return _read(Path(name))
    raise ValueError(_unknown(name_or_path))


def _read(directory: Path) -> dict[str, object]:
    file = directory / CONFIG_FILE
    try:
        fields = plain_json.mapping(file)
    except FileNotFoundError:
        raise ValueError(f"the model directory {directory} has no {CONFIG_FILE}") from None
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    fields = stock_config.from_stock(fields)
    check_file(fields, file)
    return fields


def _unknown(name: str) -> str:
    nearest = difflib.get_close_matches(name.rsplit("/", 1)[-1].lower(), PRESETS, n=1, cutoff=0.4)
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    return (
        f"{name!r} is neither a preset ({', '.join(PRESETS)}) nor a local directory with a {CONFIG_FILE}, "
        f"and nothing is downloaded.{hint}"
    )
