"""The model families of PaddleFormers, and their classes. Importing this module imports no framework.

A family is a record `Family`; ``FAMILIES`` at the end lists them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace

from llm_npu.models.family import (
    TINY_SIZES,
    Conversion,
    Experts,
    Family,
    ResidualVariant,
    RotaryVariant,
    sizes,
)
from llm_npu.models.paddlenlp import families as paddlenlp

# Fused in all families except Llama and DeepSeek-V3.
JOINED_PROJECTIONS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "up_gate_proj": ("gate_proj", "up_proj"),
}
ROPE_SCALINGS = dict.fromkeys(
    ("linear", "dynamic", "yarn", "longrope", "llama3")
)  # rope_scaling is read directly


def layers(
    attention: str,
    model: str,
    rotary: RotaryVariant = "table of tokens",
    residual: ResidualVariant = "forward",
    **more,
) -> Mapping:
    """``Family.layers`` of a dense decoder: its own classes (FamilyModel, ...) and paddleformers.nn's.

    ``rotary`` and ``residual``: variants of attention and decoder layers. ``more``: {operator: {class:
    variant}} specific to the family.
    """
    name = model.removesuffix("Model")
    classes = {
        "attention": {attention: "interface", model: "makes masks"},
        "rms_norm": {"RMSNorm": "forward", "RMSNormPipe": "first of a tuple"},
        "add_rms_norm": {f"{name}DecoderLayer": residual},
        "rotary": {attention: rotary},
        "swiglu": {"MLP": "forward"},
        "linear_cross_entropy": {
            "LMHead": "general head",
            "LMHeadPipe": "first of a tuple",
            "CriterionLayer": "general criterion",
            f"{name}ForCausalLM": "with labels",
            f"{name}ForCausalLMPipe": "stages",
        },
    }
    return {operator: classes.get(operator, {}) | more.get(operator, {}) for operator in (*classes, *more)}


# Llama: Llama 1 to 3.2, Code Llama, TinyLlama.

LLAMA = replace(
    paddlenlp.LLAMA,
    models=("LlamaForCausalLM", "LlamaForCausalLMPipe"),
    layers=layers("LLamaAttention", "LlamaModel"),
    # Unlike transformers, PaddleFormers ties the embeddings by default.
    unsupported_fields=(),
    defaults=paddlenlp.LLAMA_DEFAULTS | {"attention_dropout": 0.0},
    reads=("attention_bias", "mlp_bias"),
    rope_scalings=ROPE_SCALINGS,
    required_by_transformers={},
    fused_projections={},
)

# Qwen2 and Qwen2.5.

QWEN2 = replace(
    paddlenlp.QWEN2,
    models=("Qwen2ForCausalLM", "Qwen2ForCausalLMPipe"),
    layers=layers("Qwen2Attention", "Qwen2Model"),
    unsupported_fields=(),
    reads=("sliding_window", "use_sliding_window", "layer_types", "mlp_bias"),
    rope_scalings=ROPE_SCALINGS,
    required_by_transformers={},
    fused_projections=JOINED_PROJECTIONS,
    projections_on_request=False,
)

# Qwen3: norms of queries and keys, and a head size independent of the hidden size.

_QWEN3_DEFAULTS = sizes(4096, 22016, 32, 32, 32, vocab_size=151936, max_position_embeddings=32768) | {
    "head_dim": 128,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}
# Qwen3, arXiv 2505.09388, tables 1 and 2; the other fields are those of the released models.
_QWEN3_PUBLISHED = {"max_position_embeddings": 40960, "rope_theta": 1e6}
_QWEN3_TIED = _QWEN3_PUBLISHED | {"tie_word_embeddings": True}

QWEN3 = Family(
    model_type="qwen3",
    name="Qwen3",
    title="Qwen3",
    models=("Qwen3ForCausalLM", "Qwen3ForCausalLMPipe"),
    layers=layers("Qwen3Attention", "Qwen3Model"),
    defaults=_QWEN3_DEFAULTS,
    reads=("attention_bias", "sliding_window", "use_sliding_window", "layer_types", "mlp_bias"),
    rope_scalings=ROPE_SCALINGS,
    fused_projections=JOINED_PROJECTIONS,
    projections_on_request=False,
    presets={
        "qwen3-tiny": TINY_SIZES | {"num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": True},
        "qwen3-0.6b": sizes(1024, 3072, 28, 16, 8) | _QWEN3_TIED,
        "qwen3-1.7b": sizes(2048, 6144, 28, 16, 8) | _QWEN3_TIED,
        "qwen3-4b": sizes(2560, 9728, 36, 32, 8) | _QWEN3_TIED,
        "qwen3-8b": sizes(4096, 12288, 36, 32, 8) | _QWEN3_PUBLISHED,
        "qwen3-14b": sizes(5120, 17408, 40, 40, 8) | _QWEN3_PUBLISHED,
        "qwen3-32b": sizes(5120, 25600, 64, 64, 8) | _QWEN3_PUBLISHED,
    },
    aliases={f"Qwen/Qwen3-{size}B": f"qwen3-{size}b" for size in ("0.6", "1.7", "4", "8", "14", "32")},
)

# Qwen3-MoE: experts in every layer.

QWEN3_MOE = Family(
    model_type="qwen3_moe",
    name="Qwen3Moe",
    title="Qwen3-MoE",
    models=("Qwen3MoeForCausalLM", "Qwen3MoeForCausalLMPipe"),
    layers=layers(
        "Qwen3MoeAttention",
        "Qwen3MoeModel",
        residual="attn and post_process",
        moe={"Qwen3MoeSparseMoeBlock": "softmax router"},
    ),
    defaults=sizes(2048, 6144, 24, 32, 4, vocab_size=151936, max_position_embeddings=32768)
    | {
        "head_dim": None,  # hidden_size / num_attention_heads
        "tie_word_embeddings": False,
        "attention_dropout": 0.0,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    # The library's model discards the router logits, so it has no auxiliary loss.
    unsupported_fields=("output_router_logits", "use_sliding_window"),
    reads=("attention_bias", "sliding_window", "mlp_only_layers"),
    rope_scalings=ROPE_SCALINGS,
    experts=Experts("num_experts", "moe_intermediate_size", tensor_parallel="size"),
    distributes_experts=True,
    fused_projections=JOINED_PROJECTIONS,
    projections_on_request=False,
    presets={
        "qwen3-moe-tiny": TINY_SIZES
        | {
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "moe_intermediate_size": 128,
            "num_experts": 8,
            "num_experts_per_tok": 4,
            "norm_topk_prob": True,
        },
        # Qwen3, arXiv 2505.09388, table 2; the other fields are those of the released model.
        "qwen3-30b-a3b": {"num_hidden_layers": 48, "head_dim": 128, "norm_topk_prob": True}
        | _QWEN3_PUBLISHED,
    },
    aliases={"Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b"},
)

# ERNIE-4.5, dense: rotary embedding of interleaved pairs.

_INTERLEAVED = "interleaved table of tokens"
# Both ERNIE families have more positions and a larger rope_theta than PaddleFormers' defaults.
_ERNIE_COMMON = {
    "vocab_size": 103424,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
}
_ERNIE_TINY = TINY_SIZES | {
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}

ERNIE4_5 = Family(
    model_type="ernie4_5",
    name="Ernie4_5",
    title="ERNIE-4.5",
    models=("Ernie4_5ForCausalLM", "Ernie4_5ForCausalLMPipe"),
    layers=layers("Ernie4_5Attention", "Ernie4_5Model", _INTERLEAVED),
    defaults=_ERNIE_COMMON | sizes(1024, 3072, 18, 16, 2, head_dim=128),
    reads=("use_bias", "mlp_bias", "hidden_dropout_prob"),
    rope_scalings=ROPE_SCALINGS,
    reads_rope_parameters=True,
    fused_projections=JOINED_PROJECTIONS,
    projections_on_request=False,
    presets={
        "ernie4.5-tiny": _ERNIE_TINY,
        # The fields of the released model.
        "ernie4.5-0.3b": _ERNIE_COMMON | sizes(1024, 3072, 18, 16, 2),
    },
    aliases={"baidu/ERNIE-4.5-0.3B-PT": "ernie4.5-0.3b"},
)

# ERNIE-4.5-MoE: routed and shared experts.
# The router losses, summed over layers, are part of the gradient, but not of the reported loss.

ERNIE4_5_MOE = Family(
    model_type="ernie4_5_moe",
    name="Ernie4_5_Moe",
    title="ERNIE-4.5-MoE",
    models=("Ernie4_5_MoeForCausalLM", "Ernie4_5_MoeForCausalLMPipe"),
    layers=layers(
        "Ernie4_5Attention",
        "Ernie4_5_MoeModel",
        _INTERLEAVED,
        "forward, then more",
        swiglu={"Ernie4_5_MoeMLP": "forward"},
        moe={"Ernie4_5_MoeSparseMoeBlock": "router with statistics"},
    ),
    defaults=_ERNIE_COMMON
    | sizes(2560, 12288, 28, 20, 4)
    | {
        "moe_intermediate_size": 1536,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "num_nextn_predict_layers": 0,  # transformers does not have these layers
    },
    reads=("use_bias", "hidden_dropout_prob", "moe_dropout_prob"),
    rope_scalings=ROPE_SCALINGS,
    reads_rope_parameters=True,
    experts=Experts(
        "moe_num_experts",
        "moe_intermediate_size",
        shared_experts="moe_num_shared_experts",
        first_dense="moe_layer_start_index",
        per_token="moe_k",
        tensor_parallel="number",
    ),
    distributes_experts=True,
    fused_projections=JOINED_PROJECTIONS,
    projections_on_request=False,
    presets={
        "ernie4.5-moe-tiny": _ERNIE_TINY
        | {
            "num_hidden_layers": 4,
            "moe_intermediate_size": 128,
            "moe_num_experts": 8,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "num_nextn_predict_layers": 0,
        },
    },
)

# DeepSeek-V3: latent attention, with queries and keys wider than values, and experts.
# Its routers have no loss: PaddleFormers computes one only with experts on other processes.

# PaddleFormers requires a rope_scaling with a factor; this is the value of the released model.
_YARN = {
    "rope_type": "yarn",
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
_TINY_YARN = _YARN | {"factor": 4.0, "original_max_position_embeddings": 256}
_DEEPSEEK_LAYERS = layers("DeepseekV3Attention", "DeepseekV3Model", "part of a head", "attn and post_process")

DEEPSEEK_V3 = Family(
    model_type="deepseek_v3",
    name="DeepseekV3",
    title="DeepSeek-V3",
    models=("DeepseekV3ForCausalLM", "DeepseekV3ForCausalLMPipe"),
    layers={
        **_DEEPSEEK_LAYERS,
        "attention": _DEEPSEEK_LAYERS["attention"] | {"DeepseekV3Attention": "latent"},
        "rms_norm": _DEEPSEEK_LAYERS["rms_norm"] | {"DeepseekV3RMSNormLayerPipe": "first of a tuple"},
        "moe": {"DeepseekV3MoE": "sigmoid router"},
        "linear_cross_entropy": _DEEPSEEK_LAYERS["linear_cross_entropy"]
        | {"DeepseekV3LMHeadPipe": "first of a tuple", "DeepseekV3PretrainingCriterion": "criterion"},
    },
    defaults=sizes(7168, 18432, 61, 128, 128, vocab_size=129280, max_position_embeddings=4096)
    | {
        "tie_word_embeddings": False,
        "attention_dropout": 0.0,
        "head_dim": 64,  # of the rotated part, qk_rope_head_dim
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
    unsupported_fields=("tie_word_embeddings",),
    reads=("attention_bias",),
    fixed={"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    derived={"head_dim": "qk_rope_head_dim"},
    rope_scalings=ROPE_SCALINGS,
    needs_rope_scaling=True,
    experts=Experts(
        "n_routed_experts",
        "moe_intermediate_size",
        shared_experts="n_shared_experts",
        first_dense="first_k_dense_replace",
        tensor_parallel="nothing",
    ),
    distributes_experts=True,
    presets={
        "deepseek-v3-tiny": TINY_SIZES
        | {
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 128,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
            "q_lora_rank": 128,
            "kv_lora_rank": 64,
            "rope_scaling": _TINY_YARN,
        },
        # arXiv 2412.19437, section 4.2; the other fields are those of the released model.
        "deepseek-v3-671b": sizes(7168, 18432, 61, 128, 128, vocab_size=129280)
        | {
            "max_position_embeddings": 163840,
            "moe_intermediate_size": 2048,
            "n_routed_experts": 256,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "n_group": 8,
            "topk_group": 4,
            "first_k_dense_replace": 3,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "rope_scaling": _YARN,
        },
    },
    aliases={"deepseek-ai/DeepSeek-V3": "deepseek-v3-671b"},
)

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (LLAMA, QWEN2, QWEN3, QWEN3_MOE, ERNIE4_5, ERNIE4_5_MOE, DEEPSEEK_V3)
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
    classes = importlib.import_module(f"paddleformers.transformers.{model_type}.{module}")
    return getattr(classes, FAMILIES[model_type].name + suffix)
