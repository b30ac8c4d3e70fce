"""Mistral: dense, without its sliding window, which PaddleNLP does not compute."""

from llm_npu.models.family import TINY_SIZES, Family

from . import llama

DEFAULTS = llama.DEFAULTS | {
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}

FAMILY = Family(
    model_type="mistral",
    name="Mistral",
    title="Mistral",
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
    defaults=DEFAULTS,
    unsupported_fields=("tie_word_embeddings",),
    logits_in_float32=True,
    exported_as="llama",  # computes the same; lengths in PaddleNLP's Mistral cannot stay unknown
    sequence_parallel=False,
    presets={
        "mistral-tiny": TINY_SIZES | {"num_key_value_heads": 2, "rms_norm_eps": 1e-5},
        # Mistral 7B, arXiv 2310.06825, table 1.
        "mistral-7b": {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "sliding_window": None},
    },
    aliases={"mistralai/Mistral-7B-v0.1": "mistral-7b"},
)
