"""Mixtral: a mixture of experts in every layer."""

from llm_npu.models.family import TINY_SIZES, Experts, Family

from . import mistral

FAMILY = Family(
    model_type="mixtral",
    name="Mixtral",
    title="Mixtral",
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
    defaults=mistral.DEFAULTS
    | {
        "sliding_window": None,
        "attention_dropout": 0.0,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    unsupported_fields=("tie_word_embeddings",),
    reads=("output_router_logits",),
    experts=Experts("num_local_experts"),
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
