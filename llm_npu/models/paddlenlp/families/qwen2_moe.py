"""Qwen2-MoE: a mixture of small experts and a shared one in every layer; Qwen1.5-MoE."""

from llm_npu.models.family import TINY_SIZES, Experts, Family, sizes

from . import llama

FAMILY = Family(
    model_type="qwen2_moe",
    name="Qwen2Moe",
    title="Qwen2-MoE",
    models=("Qwen2MoeForCausalLM",),
    layers={
        "attention": {"Qwen2MoeAttention": "attn_func", "Qwen2MoeModel": "decoder"},
        "rms_norm": {"Qwen2MoeRMSNorm": "forward"},
        "add_rms_norm": {"Qwen2MoeDecoderLayer": "forward"},
        "rotary": {"Qwen2MoeAttention": "tokens first", "Qwen2MoeModel": "decoder"},
        "swiglu": {"Qwen2MoeMLP": "act_fn"},
        "moe": {"Qwen2MoeSparseMoEBlock": "gate and shared expert"},
        "linear_cross_entropy": {
            "Qwen2MoeLMHead": "parallel_matmul",
            "Qwen2MoePretrainingCriterion": "criterion",
            "Qwen2MoeForCausalLM": "with labels",
        },
    },
    defaults=llama.DEFAULTS
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
    fused_projections=llama.FUSED_PROJECTIONS,
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
