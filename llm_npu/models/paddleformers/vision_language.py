"""PaddleFormers' families of vision-language models, which its own programs train: ``llm-npu formers train``.

They are not in ``families.FAMILIES``: they have no presets, and ``llm-npu train`` does not know them.
Importing this module imports no framework.
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_npu.models.family import FusableFamily

VISION_TOWER, PROJECTOR, TEXT = "vision tower", "projector", "text"

PADDLEOCR_VL = FusableFamily(
    model_type="paddleocr_vl",
    title="PaddleOCR-VL",
    models=("PaddleOCRVLForConditionalGeneration",),
    layers={
        "attention": {
            "Ernie4_5Attention": "interface",
            "Ernie4_5Model": "makes masks",
            "PaddleOCRAttention": "vision interface",
            "PaddleOCREncoder": "vision encoder",
            "PaddleOCRVisionEmbeddings": "patch embedding",
            "Projector": "projector",
            "PaddleOCRVLForConditionalGeneration": "image tokens",
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
    parts={
        "PaddleOCRVLForConditionalGeneration": TEXT,
        "PaddleOCRVisionModel": VISION_TOWER,
        "Projector": PROJECTOR,
    },
)

QWEN2_5_VL = FusableFamily(
    model_type="qwen2_5_vl",
    title="Qwen2.5-VL",
    models=("Qwen2_5_VLForConditionalGeneration",),
    layers={
        "attention": {
            "Qwen2_5_VLAttention": "interface",
            "Qwen2_5_VLTextModel": "makes masks",
            "Qwen2_5_VLVisionAttention": "vision documents",
            "Qwen2_5_VisionTransformerPretrainedModel": "windows of patches",
            "Qwen2_5_VisionPatchEmbed": "patch products",
            "Qwen2_5_VLModel": "image features",
        },
        "rms_norm": {"RMSNorm": "forward"},
        "add_rms_norm": {"Qwen2_5_VLDecoderLayer": "forward"},
        "rotary": {
            "Qwen2_5_VLAttention": "multimodal",
            "Qwen2_5_VLRotaryEmbedding": "three axes",
            "Qwen2_5_VLVisionAttention": "vision",
        },
        "swiglu": {"MLP": "forward"},
    },
    parts={
        "Qwen2_5_VLForConditionalGeneration": TEXT,
        "Qwen2_5_VisionTransformerPretrainedModel": VISION_TOWER,
        "Qwen2_5_VLVisionBlock": VISION_TOWER,
        "Qwen2_5_VLPatchMerger": PROJECTOR,
    },
)

# Without parts: the backward passes of its text's first layers and of its vision tower are interleaved.
QWEN3_VL = FusableFamily(
    model_type="qwen3_vl",
    title="Qwen3-VL",
    models=("Qwen3VLForConditionalGeneration",),
    layers={
        "attention": {
            "Qwen3VLTextAttention": "interface",
            "Qwen3VLTextModel": "makes masks, deepstack",
            "Qwen3VLVisionAttention": "vision documents",
            "Qwen3VLVisionModel": "grid of positions",
            "Qwen3VLVisionPatchEmbed": "patch products",
            "Qwen3VLModel": "image features",
        },
        "rms_norm": {"RMSNorm": "forward"},
        "add_rms_norm": {"Qwen3VLTextDecoderLayer": "forward"},
        "rotary": {"Qwen3VLTextAttention": "multimodal", "Qwen3VLVisionAttention": "vision"},
        "swiglu": {"MLP": "forward"},
    },
)

FAMILIES: Mapping[str, FusableFamily] = {
    family.model_type: family for family in (PADDLEOCR_VL, QWEN2_5_VL, QWEN3_VL)
}
