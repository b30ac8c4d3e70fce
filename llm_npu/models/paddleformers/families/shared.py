"""The layers that PaddleFormers' families share, and the ways in which they compute an operator."""

from __future__ import annotations

from collections.abc import Mapping

from llm_npu.models.family import ResidualWay, RotaryWay

# Always in one matrix, in all families but Llama and DeepSeek-V3.
JOINED_PROJECTIONS = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "up_gate_proj": ("gate_proj", "up_proj"),
}
ROPE_SCALINGS = dict.fromkeys(
    ("linear", "dynamic", "yarn", "longrope", "llama3")
)  # rope_scaling is read itself


def layers(
    attention: str,
    model: str,
    rotary: RotaryWay = "table of tokens",
    residual: ResidualWay = "forward",
    **more,
) -> Mapping:
    """Family.layers of a dense decoder: its own classes (FamilyModel, ...), and those of paddleformers.nn.

    ``rotary`` of its attention layers, ``residual`` of its decoder layers. ``more``: {operator: {class: way}}
    of the family's own.
    """
    name = model.removesuffix("Model")
    found = {
        "attention": {attention: "interface", model: "makes masks"},
        "rms_norm": {"RMSNorm": "forward", "RMSNormPipe": "first of a tuple"},
        "add_rms_norm": {f"{name}DecoderLayer": residual},
        "rotary": {attention: rotary},
        "swiglu": {"MLP": "forward"},
        "linear_cross_entropy": {
            "LMHead": "general head",
            "LMHeadPipe": "first of a tuple",
            "CriterionLayer": "general criterion",
            f"{name}ForCausalLM": "with labels",
            f"{name}ForCausalLMPipe": "stages",
        },
    }
    return {operator: found.get(operator, {}) | more.get(operator, {}) for operator in (*found, *more)}
