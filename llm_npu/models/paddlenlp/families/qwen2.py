"""Qwen2: Qwen1.5, Qwen2 and Qwen2.5, dense."""

from llm_npu.models.family import TINY_SIZES, Family, sizes

from . import llama

# One matrix for embedding and lm_head, as in the released models of up to 3 billion parameters.
_TIED = {"rope_theta": 1e6, "tie_word_embeddings": True}

FAMILY = Family(
    model_type="qwen2",
    name="Qwen2",
    title="Qwen2",
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
    defaults=llama.DEFAULTS
    | {
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
        "attention_dropout": 0.0,
    },
    unsupported_fields=("use_sliding_window",),
    reads=("sliding_window",),
    fused_projections=llama.FUSED_PROJECTIONS,
    attention_bias=True,
    presets={
        "qwen2-tiny": TINY_SIZES | {"num_key_value_heads": 2} | _TIED,
        # The fields of the released model.
        "qwen1.5-0.5b": sizes(1024, 2816, 24, 16, 16) | _TIED,
        # Qwen2, arXiv 2407.10671, table 1; the other fields are those of the released model.
        "qwen2-0.5b": sizes(896, 4864, 24, 14, 2, max_position_embeddings=131072) | _TIED,
        # Qwen2.5, arXiv 2412.15115, table 1; the other fields are those of the released models.
        "qwen2.5-0.5b": sizes(896, 4864, 24, 14, 2) | _TIED,
        "qwen2.5-3b": sizes(2048, 11008, 36, 16, 2) | _TIED,
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
