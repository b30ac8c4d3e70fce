"""DeepSeek-V3: latent attention, with queries and keys wider than values, and a mixture of experts.

Its routers have no loss: PaddleFormers computes one only where experts are in other processes.
"""

from llm_npu.models.family import TINY_SIZES, Experts, Family, sizes

from .shared import ROPE_SCALINGS, layers

# PaddleFormers requires a rope_scaling with a factor; this is the released model's.
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
_LAYERS = layers("DeepseekV3Attention", "DeepseekV3Model", "part of a head", "attn and post_process")

FAMILY = Family(
    model_type="deepseek_v3",
    name="DeepseekV3",
    title="DeepSeek-V3",
    models=("DeepseekV3ForCausalLM", "DeepseekV3ForCausalLMPipe"),
    layers={
        **_LAYERS,
        "attention": _LAYERS["attention"] | {"DeepseekV3Attention": "latent"},
        "rms_norm": _LAYERS["rms_norm"] | {"DeepseekV3RMSNormLayerPipe": "first of a tuple"},
        "moe": {"DeepseekV3MoE": "sigmoid router"},
        "linear_cross_entropy": _LAYERS["linear_cross_entropy"]
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
