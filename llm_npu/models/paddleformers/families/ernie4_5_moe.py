"""ERNIE-4.5-MoE: routed experts beside shared ones.

The losses of its routers, summed over layers, are part of the gradient only, not of the loss that is shown.
"""

from llm_npu.models.family import TINY_SIZES, Experts, Family, sizes

from . import ernie4_5
from .shared import JOINED_PROJECTIONS, ROPE_SCALINGS, layers

FAMILY = Family(
    model_type="ernie4_5_moe",
    name="Ernie4_5_Moe",
    title="ERNIE-4.5-MoE",
    models=("Ernie4_5_MoeForCausalLM", "Ernie4_5_MoeForCausalLMPipe"),
    layers=layers(
        "Ernie4_5Attention",
        "Ernie4_5_MoeModel",
        ernie4_5.INTERLEAVED,
        swiglu={"Ernie4_5_MoeMLP": "forward"},
        moe={"Ernie4_5_MoeSparseMoeBlock": "router with statistics"},
    ),
    defaults=sizes(2560, 12288, 3, 2, vocab_size=103424, max_position_embeddings=32768)
    | {
        "num_key_value_heads": None,  # as many as attention heads
        "tie_word_embeddings": True,
        "moe_intermediate_size": 0,
        "moe_num_experts": 16,
        "moe_k": 2,
    },
    rope_scalings=ROPE_SCALINGS,
    experts=Experts("moe_num_experts", "moe_intermediate_size", per_token="moe_k", tensor_parallel="number"),
    fused_projections=JOINED_PROJECTIONS,
    projections_on_request=False,
    presets={
        "ernie4.5-moe-tiny": TINY_SIZES
        | {
            "num_hidden_layers": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "moe_intermediate_size": 128,
            "moe_num_experts": 8,
            "moe_num_shared_experts": 1,
            "num_nextn_predict_layers": 0,
        },
    },
)
