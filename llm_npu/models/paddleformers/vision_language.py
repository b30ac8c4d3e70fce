"""PaddleFormers' families of vision-language models, which its own programs train: ``llm-npu formers train``.

They are not in ``families.FAMILIES``: they have no presets, and the planner and ``llm-npu train`` do not know
them. Importing this module imports no framework.
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_npu.models.family import FusableFamily

PADDLEOCR_VL = FusableFamily(
    model_type="paddleocr_vl",
    title="PaddleOCR-VL",
    models=("PaddleOCRVLForConditionalGeneration",),
    layers={
        "attention": {
            "Ernie4_5Attention": "interface",
            "Ernie4_5Model": "makes masks",
            "PaddleOCRAttention": "vision interface",
        },
        "rms_norm": {"RMSNorm": "forward"},
        "add_rms_norm": {"Ernie4_5DecoderLayer": "forward"},
        "rotary": {
            "Ernie4_5Attention": "multimodal",
            "PaddleOCRRotaryEmbedding": "three axes",
            "PaddleOCRAttention": "vision",
        },
        "swiglu": {"MLP": "forward"},
    },
)

FAMILIES: Mapping[str, FusableFamily] = {family.model_type: family for family in (PADDLEOCR_VL,)}
