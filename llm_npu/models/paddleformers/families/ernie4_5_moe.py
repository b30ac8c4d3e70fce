"""ERNIE-4.5-MoE: routed experts beside shared ones.

The losses of its routers, summed over layers, are part of the gradient only, not of the loss that is shown.
"""

from llm_npu.models.family import Experts, Family, sizes

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
        "forward, then more",
        swiglu={"Ernie4_5_MoeMLP": "forward"},
        moe={"Ernie4_5_MoeSparseMoeBlock": "router with statistics"},
    ),
    defaults=ernie4_5.COMMON
    | sizes(2560, 12288, 28, 20, 4)
    | {
        "moe_intermediate_size": 1536,
        "moe_num_experts": 64,
        "moe_k": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "num_nextn_predict_layers": 0,  # transformers has no such layers
    },
    reads=("use_bias", "hidden_dropout_prob", "moe_dropout_prob"),
    rope_scalings=ROPE_SCALINGS,
    reads_rope_parameters=True,
    experts=Experts(
        "moe_num_experts",
        "moe_intermediate_size",
        shared_experts="moe_num_shared_experts",
        first_dense="moe_layer_start_index",
        per_token="moe_k",
        tensor_parallel="number",
    ),
    fused_projections=JOINED_PROJECTIONS,
    projections_on_request=False,
    presets={
        "ernie4.5-moe-tiny": ernie4_5.TINY
        | {
            "num_hidden_layers": 4,
            "moe_intermediate_size": 128,
            "moe_num_experts": 8,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "num_nextn_predict_layers": 0,
        },
    },
)
