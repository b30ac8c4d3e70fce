"""Qwen3: norms of queries and keys, and a head size apart from the hidden size."""

from llm_npu.models.family import TINY_SIZES, Family, sizes

from .shared import JOINED_PROJECTIONS, ROPE_SCALINGS, layers

DEFAULTS = sizes(4096, 22016, 32, 32, 32, vocab_size=151936, max_position_embeddings=32768) | {
    "head_dim": 128,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
}
# Qwen3, arXiv 2505.09388, tables 1 and 2; the other fields are those of the released models.
PUBLISHED = {"max_position_embeddings": 40960, "rope_theta": 1e6}
_TIED = PUBLISHED | {"tie_word_embeddings": True}

FAMILY = Family(
    model_type="qwen3",
    name="Qwen3",
    title="Qwen3",
    models=("Qwen3ForCausalLM", "Qwen3ForCausalLMPipe"),
    layers=layers("Qwen3Attention", "Qwen3Model"),
    defaults=DEFAULTS,
    reads=("attention_bias", "sliding_window", "use_sliding_window", "layer_types", "mlp_bias"),
    rope_scalings=ROPE_SCALINGS,
    fused_projections=JOINED_PROJECTIONS,
    projections_on_request=False,
    presets={
        "qwen3-tiny": TINY_SIZES | {"num_key_value_heads": 2, "head_dim": 128, "tie_word_embeddings": True},
        "qwen3-0.6b": sizes(1024, 3072, 28, 16, 8) | _TIED,
        "qwen3-1.7b": sizes(2048, 6144, 28, 16, 8) | _TIED,
        "qwen3-4b": sizes(2560, 9728, 36, 32, 8) | _TIED,
        "qwen3-8b": sizes(4096, 12288, 36, 32, 8) | PUBLISHED,
        "qwen3-14b": sizes(5120, 17408, 40, 40, 8) | PUBLISHED,
        "qwen3-32b": sizes(5120, 25600, 64, 64, 8) | PUBLISHED,
    },
    aliases={f"Qwen/Qwen3-{size}B": f"qwen3-{size}b" for size in ("0.6", "1.7", "4", "8", "14", "32")},
)
