"""Qwen3-MoE: a mixture of experts in every layer."""

from llm_npu.models.family import TINY_SIZES, Experts, Family, sizes

from . import qwen3
from .shared import JOINED_PROJECTIONS, ROPE_SCALINGS, layers

FAMILY = Family(
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
    # The library's model drops the logits of its routers, so it has no auxiliary loss.
    unsupported_fields=("output_router_logits", "use_sliding_window"),
    reads=("attention_bias", "sliding_window", "mlp_only_layers"),
    rope_scalings=ROPE_SCALINGS,
    experts=Experts("num_experts", "moe_intermediate_size", tensor_parallel="size"),
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
        "qwen3-30b-a3b": {"num_hidden_layers": 48, "head_dim": 128, "norm_topk_prob": True} | qwen3.PUBLISHED,
    },
    aliases={"Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b"},
)
