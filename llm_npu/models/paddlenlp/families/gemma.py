"""Gemma: GeGLU, RMSNorm by 1 + weight, heads of a size of their own."""

from llm_npu.models.family import TINY_SIZES, Family, sizes

FAMILY = Family(
    model_type="gemma",
    name="Gemma",
    title="Gemma",
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
    activations=("gelu",),  # not its approximation by tanh
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
