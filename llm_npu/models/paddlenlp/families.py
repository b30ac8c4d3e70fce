"""The model families of PaddleNLP, and their classes. Importing this module imports no framework.

A family is a record `Family`; ``FAMILIES`` at the end lists them.
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_npu.models.family import TINY_SIZES, Conversion, Experts, Family, sizes
from llm_npu.models.paddlenlp import gpt2, internlm2

# Llama: Llama 1 to 3.2, Code Llama, TinyLlama.

LLAMA_DEFAULTS = sizes(4096, 11008, 32, 32, vocab_size=32000, max_position_embeddings=2048) | {
    "num_key_value_heads": None,  # as many as attention heads
    "tie_word_embeddings": False,
}
FUSED_PROJECTIONS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_fused_proj": ("gate_proj", "up_proj"),
}

_8B = sizes(4096, 14336, 32, 32)
_13B = sizes(5120, 13824, 40, 40)
_34B = sizes(8192, 22016, 48, 64, 8, rms_norm_eps=1e-5)
_70B = sizes(8192, 28672, 80, 64, 8)
_LLAMA_3 = {
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA_3_1 = _LLAMA_3 | {"max_position_embeddings": 131072, "rope_scaling": _SCALING}
_LLAMA_3_2 = _LLAMA_3_1 | {"rope_scaling": _SCALING | {"factor": 32.0}, "tie_word_embeddings": True}

LLAMA_PRESETS = {
    # 9.3 million parameters.
    "llama-tiny": TINY_SIZES,
    # Layers of the 110M model of karpathy/llama2.c (README, table of models), which has 32000 tokens and one
    # matrix for embedding and lm_head; half the tokens and two matrices have the same size.
    "llama-110m": sizes(768, 2048, 12, 12, vocab_size=16384, max_position_embeddings=1024, rms_norm_eps=1e-5),
    # TinyLlama, arXiv 2401.02385, table 1.
    "tinyllama-1.1b": sizes(2048, 5632, 22, 32, 4, rms_norm_eps=1e-5),
    # Llama, arXiv 2302.13971, table 2.
    "llama-7b": {"rms_norm_eps": 1e-6},
    "llama-13b": _13B | {"rms_norm_eps": 1e-6},
    # Llama 2, arXiv 2307.09288, table 1; the feed-forward widths are those of the released models.
    "llama2-7b": {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "llama2-13b": _13B | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    # Never released; sizes from MindSpeed-LLM's examples/mcore/llama2/pretrain_llama2_34B_ptd_16p.sh.
    "llama2-34b": _34B | {"max_position_embeddings": 4096},
    "llama2-70b": _70B | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    # Llama 3, arXiv 2407.21783, table 3; 8192 positions before the context was extended.
    "llama3-8b": _LLAMA_3 | _8B,
    "llama3-70b": _LLAMA_3 | _70B,
    # Llama 3.1, in the same table, and Llama 3.2: the fields of the released models.
    "llama3.1-8b": _LLAMA_3_1 | _8B,
    "llama3.1-70b": _LLAMA_3_1 | _70B,
    "llama3.2-1b": _LLAMA_3_2 | sizes(2048, 8192, 16, 32),
    "llama3.2-3b": _LLAMA_3_2 | sizes(3072, 8192, 28, 24),
    # Code Llama, arXiv 2308.12950: a Llama 2 34B with a larger rope_theta; fields of the released model.
    "codellama-34b": _34B | {"max_position_embeddings": 16384, "rope_theta": 1e6},
}

LLAMA = Family(
    model_type="llama",
    name="Llama",
    title="Llama",
    splits_sequences=True,
    # Includes the classes for auto-parallel (modeling_auto, modeling_network) and pipelines.
    models=("LlamaForCausalLM", "LlamaForCausalLM3DAuto", "LlamaForCausalLMNet", "LlamaForCausalLMPipe"),
    layers={
        "attention": {
            "LlamaAttention": "attn_func",
            "LlamaAttentionAuto": "function",
            "LlamaAttentionNet": "function",
            "LlamaModel": "decoder",
            "LlamaModelAuto": "decoder without mask",
            "GlobalOutputNet": "inputs of all layers",
            "LlamaEmbeddingPipe": "first stage",
        },
        "rms_norm": dict.fromkeys(("LlamaRMSNorm", "LlamaRMSNormAuto", "LlamaRMSNormNet"), "forward"),
        "add_rms_norm": dict.fromkeys(
            ("LlamaDecoderLayer", "LlamaDecoderLayerAuto", "LlamaDecoderLayerNet"), "forward"
        ),
        "rotary": {
            "LlamaAttention": "tokens first",
            "LlamaAttentionAuto": "tokens first",
            "LlamaAttentionNet": "tokens first",
            "LlamaModel": "decoder",
        },
        "swiglu": dict.fromkeys(("LlamaMLP", "LlamaMLPAuto", "LlamaMLPNet"), "function"),
        "linear_cross_entropy": {
            "LlamaLMHead": "parallel_matmul",
            "LlamaPretrainingCriterion": "criterion",
            "LlamaForCausalLM": "with labels",
            "LlamaForCausalLMPipe": "stages",
        },
    },
    defaults=LLAMA_DEFAULTS,
    unsupported_fields=("attention_bias", "mlp_bias"),
    rope_scalings={"linear": "linear", "dynamic": "dynamic_ntk", "ntk": "ntk", "llama3": None},
    required_by_transformers={"attention_bias": False, "mlp_bias": False},
    fused_projections=FUSED_PROJECTIONS,
    presets=LLAMA_PRESETS,
    aliases={
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
    },
)

# Qwen2: Qwen1.5, Qwen2 and Qwen2.5, dense.

# One matrix for embedding and lm_head, as in the released models of up to 3 billion parameters.
_QWEN2_TIED = {"rope_theta": 1e6, "tie_word_embeddings": True}

QWEN2 = Family(
    model_type="qwen2",
    name="Qwen2",
    title="Qwen2",
    splits_sequences=True,
    models=("Qwen2ForCausalLM",),
    layers={
        "attention": {"Qwen2Attention": "attn_func", "Qwen2Model": "decoder"},
        "rms_norm": {"Qwen2RMSNorm": "forward"},
        "add_rms_norm": {"Qwen2DecoderLayer": "forward"},
        "rotary": {"Qwen2Attention": "tokens first", "Qwen2Model": "decoder"},
        "swiglu": {"Qwen2MLP": "act_fn"},
        "linear_cross_entropy": {
            "Qwen2LMHead": "parallel_matmul",
            "Qwen2PretrainingCriterion": "criterion",
            "Qwen2ForCausalLM": "with labels",
        },
    },
    defaults=LLAMA_DEFAULTS
    | {
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "attention_dropout": 0.0,
    },
    unsupported_fields=("use_sliding_window",),
    reads=("sliding_window",),
    fused_projections=FUSED_PROJECTIONS,
    attention_bias=True,
    presets={
        "qwen2-tiny": TINY_SIZES | {"num_key_value_heads": 2} | _QWEN2_TIED,
        # The fields of the released model.
        "qwen1.5-0.5b": sizes(1024, 2816, 24, 16, 16) | _QWEN2_TIED,
        # Qwen2, arXiv 2407.10671, table 1; the other fields are those of the released model.
        "qwen2-0.5b": sizes(896, 4864, 24, 14, 2, max_position_embeddings=131072) | _QWEN2_TIED,
        # Qwen2.5, arXiv 2412.15115, table 1; the other fields are those of the released models.
        "qwen2.5-0.5b": sizes(896, 4864, 24, 14, 2) | _QWEN2_TIED,
        "qwen2.5-3b": sizes(2048, 11008, 36, 16, 2) | _QWEN2_TIED,
        "qwen2.5-7b": sizes(3584, 18944, 28, 28, 4, vocab_size=152064, rope_theta=1e6),
    },
    aliases={
        "Qwen/Qwen1.5-0.5B": "qwen1.5-0.5b",
        "Qwen/Qwen2-0.5B": "qwen2-0.5b",
        "Qwen/Qwen2.5-0.5B": "qwen2.5-0.5b",
        "Qwen/Qwen2.5-3B": "qwen2.5-3b",
        "Qwen/Qwen2.5-7B": "qwen2.5-7b",
    },
)

# Mistral: dense, without the sliding window, which PaddleNLP does not implement.

MISTRAL_DEFAULTS = LLAMA_DEFAULTS | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}

MISTRAL = Family(
    model_type="mistral",
    name="Mistral",
    title="Mistral",
    splits_sequences=True,
    models=("MistralForCausalLM",),
    layers={
        "attention": {"MistralAttention": "F", "MistralModel": "causal decoder"},
        "rms_norm": {"MistralRMSNorm": "forward"},
        "add_rms_norm": {"MistralDecoderLayer": "forward"},
        "rotary": {"MistralAttention": "heads first"},
        "swiglu": {"MistralMLP": "forward"},
        "linear_cross_entropy": {
            "MistralLMHead": "parallel_matmul",
            "MistralPretrainingCriterion": "criterion",
            "MistralForCausalLM": "with labels",
        },
    },
    defaults=MISTRAL_DEFAULTS,
    unsupported_fields=("tie_word_embeddings",),
    logits_in_float32=True,
    exported_as="llama",  # equivalent; PaddleNLP's Mistral does not support dynamic lengths
    sequence_parallel=False,
    presets={
        "mistral-tiny": TINY_SIZES | {"num_key_value_heads": 2, "rms_norm_eps": 1e-5},
        # Mistral 7B, arXiv 2310.06825, table 1.
        "mistral-7b": {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "sliding_window": None},
    },
    aliases={"mistralai/Mistral-7B-v0.1": "mistral-7b"},
)

# Mixtral: experts in every layer.

MIXTRAL = Family(
    model_type="mixtral",
    name="Mixtral",
    title="Mixtral",
    splits_sequences=True,
    models=("MixtralForCausalLM",),
    layers={
        "attention": {"MixtralAttention": "function", "MixtralModel": "decoder"},
        "rms_norm": {"MixtralRMSNorm": "forward"},
        "add_rms_norm": {"MixtralDecoderLayer": "forward"},
        "rotary": {"MixtralAttention": "tokens first", "MixtralModel": "decoder"},
        "swiglu": {"MixtralMLP": "forward"},
        "moe": {"MixtralSparseMoeBlock": "router"},
        "linear_cross_entropy": {
            "MixtralLMHead": "parallel_matmul",
            "MixtralPretrainingCriterion": "criterion",
            "MixtralForCausalLM": "with labels",
        },
    },
    defaults=MISTRAL_DEFAULTS
    | {
        "sliding_window": None,
        "attention_dropout": 0.0,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    unsupported_fields=("tie_word_embeddings",),
    reads=("output_router_logits",),
    experts=Experts("num_local_experts"),
    distributes_experts=True,
    projections=("w1", "w3", "w2"),
    presets={
        "mixtral-tiny": TINY_SIZES
        | {
            "intermediate_size": 384,
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
        },
        # Mixtral of experts, arXiv 2401.04088, table 1.
        "mixtral-8x7b": {"max_position_embeddings": 32768},
    },
    aliases={"mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b"},
)

# Qwen2-MoE: small experts and a shared expert in every layer; Qwen1.5-MoE.

QWEN2_MOE = Family(
    model_type="qwen2_moe",
    name="Qwen2Moe",
    title="Qwen2-MoE",
    splits_sequences=True,
    models=("Qwen2MoeForCausalLM", "Qwen2MoeForCausalLMPipe"),
    layers={
        "attention": {
            "Qwen2MoeAttention": "attn_func",
            "Qwen2MoeModel": "decoder",
            "Qwen2MoeEmbeddingPipe": "first stage",
        },
        "rms_norm": {"Qwen2MoeRMSNorm": "forward"},
        "add_rms_norm": {"Qwen2MoeDecoderLayer": "forward"},
        "rotary": {"Qwen2MoeAttention": "tokens first", "Qwen2MoeModel": "decoder"},
        "swiglu": {"Qwen2MoeMLP": "act_fn"},
        "moe": {"Qwen2MoeSparseMoEBlock": "gate and shared expert"},
        "linear_cross_entropy": {
            "Qwen2MoeLMHead": "parallel_matmul",
            "Qwen2MoePretrainingCriterion": "criterion",
            "Qwen2MoeForCausalLM": "with labels",
            "Qwen2MoeForCausalLMPipe": "stages",
        },
    },
    defaults=LLAMA_DEFAULTS
    | sizes(2048, 5632, 24, 16, 16, vocab_size=151936, max_position_embeddings=32768)
    | {
        "rope_theta": 10000.0,
        "attention_dropout": 0.0,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
    },
    unsupported_fields=("use_sliding_window", "mlp_only_layers", "tie_word_embeddings"),
    reads=("sliding_window", "output_router_logits"),
    experts=Experts("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"),
    distributes_experts=True,
    fused_projections=FUSED_PROJECTIONS,
    attention_bias=True,
    presets={
        "qwen2-moe-tiny": TINY_SIZES
        | {
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 384,
            "num_hidden_layers": 4,
            "num_key_value_heads": 4,
            "num_experts": 8,
            "num_experts_per_tok": 4,
            "rope_theta": 1e6,
        },
        # The fields of the released model.
        "qwen1.5-moe-a2.7b": {"max_position_embeddings": 8192, "rope_theta": 1e6},
    },
    aliases={"Qwen/Qwen1.5-MoE-A2.7B": "qwen1.5-moe-a2.7b"},
)


# GPT: GPT-2 and GPT-3. LayerNorm, GELU, dropout and learned positions.


def _gpt_sizes(hidden: int, layers: int, heads: int, **other) -> dict:
    return sizes(hidden, 4 * hidden, layers, heads, **other)


_GPT_2 = {"vocab_size": 50257, "max_position_embeddings": 1024}
# 50257 tokens padded to a multiple of tensor parallel degrees, as in PaddleNLP's scripts.
_GPT_3 = {"vocab_size": 50304, "max_position_embeddings": 2048}

GPT = Family(
    model_type="gpt",
    name="GPT",
    title="GPT",
    splits_sequences=True,
    models=("GPTForCausalLM",),
    layers={
        "attention": {"MultiHeadAttention": "core attention", "GPTModel": "learned positions"},
        "dropout_add_layer_norm": {
            "GPTDecoderLayer": "layer",
            "GPTEmbeddings": "embeddings",
            "GPTLayerNorm": "norm",
            "TransformerDecoder": "layers",
        },
        "linear_cross_entropy": {
            "GPTLMHead": "parallel_matmul",
            "GPTPretrainingCriterion": "criterion",
            "GPTForCausalLM": "with labels",
        },
    },
    defaults=_gpt_sizes(768, 12, 12, vocab_size=50304, max_position_embeddings=512)
    | {
        "num_key_value_heads": None,
        "tie_word_embeddings": True,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    },
    fixed={
        "tie_word_embeddings": True,
        "hidden_activation": "gelu",
        "normalize_before": True,
        "layer_norm_eps": 1e-5,
        "ignore_index": -100,  # the class ignores labels of token 0 by default
    },
    activations=("gelu", "gelu_new", "gelu_pytorch_tanh"),  # all computed with tanh
    gated=False,
    attention_bias=True,
    biases=True,
    learned_positions=True,
    stored_as=gpt2.LAYOUT,
    generates_in_stages=False,
    presets={
        "gpt-tiny": TINY_SIZES | {"intermediate_size": 1024},
        # GPT-2, the fields of the released models.
        "gpt2": _GPT_2 | _gpt_sizes(768, 12, 12),
        "gpt2-medium": _GPT_2 | _gpt_sizes(1024, 24, 16),
        "gpt2-large": _GPT_2 | _gpt_sizes(1280, 36, 20),
        "gpt2-xl": _GPT_2 | _gpt_sizes(1600, 48, 25),
        # GPT-3, arXiv 2005.14165, table 2.1, with head_dim 128 throughout: 16 heads for 1.3B, 40 for 13B.
        "gpt3-1.3b": _GPT_3 | _gpt_sizes(2048, 24, 16),
        "gpt3-6.7b": _GPT_3 | _gpt_sizes(4096, 32, 32),
        "gpt3-13b": _GPT_3 | _gpt_sizes(5120, 40, 40),
        "gpt3-175b": _GPT_3 | _gpt_sizes(12288, 96, 96),
    },
    aliases={
        "gpt2-en": "gpt2",
        "gpt2-medium-en": "gpt2-medium",
        "gpt2-large-en": "gpt2-large",
        "gpt2-xl-en": "gpt2-xl",
        "gpt3-1.3B-en": "gpt3-1.3b",
        "gpt3-6.7B-en": "gpt3-6.7b",
        "gpt3-13B-en": "gpt3-13b",
        "gpt3-175B-en": "gpt3-175b",
    },
)

# Gemma: GeGLU, RMSNorm with 1 + weight, an explicit head size.

GEMMA = Family(
    model_type="gemma",
    name="Gemma",
    title="Gemma",
    splits_sequences=True,
    models=("GemmaForCausalLM",),
    layers={
        "attention": {"GemmaAttention": "function", "GemmaModel": "decoder"},
        "rms_norm": {"GemmaRMSNorm": "one more"},
        "rotary": {"GemmaAttention": "tokens first", "GemmaModel": "decoder"},
        "geglu": {"GemmaMLP": "forward"},
        "linear_cross_entropy": {
            "GemmaLMHead": "parallel_matmul",
            "GemmaPretrainingCriterion": "criterion",
            "GemmaForCausalLM": "with labels",
        },
    },
    defaults=sizes(3072, 24576, 28, 16, 16, vocab_size=256000, max_position_embeddings=8192)
    | {"head_dim": 256, "attention_dropout": 0.0, "tie_word_embeddings": True},
    fixed={"tie_word_embeddings": True, "hidden_activation": "gelu"},
    activations=("gelu",),  # not the tanh approximation
    sequence_parallel=False,
    generates_in_stages=False,
    presets={
        "gemma-tiny": TINY_SIZES | {"num_key_value_heads": 1, "head_dim": 64},
        # Gemma, arXiv 2403.08295, table 1; the vocabulary is that of the released models.
        "gemma-2b": sizes(2048, 16384, 18, 8, 1),
        "gemma-7b": {},
    },
    aliases={"google/gemma-2b": "gemma-2b", "google/gemma-7b": "gemma-7b"},
)

FAMILIES: Mapping[str, Family] = {
    family.model_type: family for family in (LLAMA, QWEN2, MISTRAL, MIXTRAL, QWEN2_MOE, GPT, GEMMA)
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
