"""Counts the memory of full fine-tuning of PaddleOCR-VL-0.9B in a dry run, which computes nothing.

    VIRTUAL_NPU_DRY=1 llm-npu formers examples/ocr/count_memory.py --images 8 --rows 24 --columns 32 --text 64

A batch has ``--images`` images of ``--rows`` x ``--columns`` patches, each with ``--text`` tokens of text.
Weights and activations are bfloat16; gradients, AdamW's moments and its copy of the weights are float32. Each
layer is recomputed in the backward pass, as in the published file.
"""

from __future__ import annotations

import argparse

import numpy as np
import paddle
from paddle.base import core
from paddleformers.transformers.paddleocr_vl.configuration import PaddleOCRVLConfig
from paddleformers.transformers.paddleocr_vl.modeling import PaddleOCRVLForConditionalGeneration

IMAGE_TOKEN, TEXT_TOKEN = 100295, 7
MERGED = 2  # patches of a token of the decoder, in each direction


def build() -> PaddleOCRVLForConditionalGeneration:
    """The model with the sizes of the published config.json."""
    config = PaddleOCRVLConfig(
        vocab_size=103424,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=18,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=128,
        rope_theta=500000,
        rope_scaling={"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"},
        image_token_id=IMAGE_TOKEN,
        vision_config={
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 384,
            "patch_size": 14,
        },
    )
    for part in (config, config.vision_config):
        part._attn_implementation = "flashmask"
        part.recompute_granularity, part.recompute_method, part.recompute_num_layers = "full", "uniform", 1
    return PaddleOCRVLForConditionalGeneration(config)


def batch(images: int, rows: int, columns: int, text: int) -> dict[str, paddle.Tensor]:
    """One row without padding. The grids stay on the host: a dry run knows no values of the device."""
    height, width = rows // MERGED, columns // MERGED
    tokens = np.array([IMAGE_TOKEN] * (height * width) + [TEXT_TOKEN] * text)
    grid = np.stack([np.zeros(height * width), *np.indices((height, width)).reshape(2, -1)])
    after = np.arange(text) + max(height, width)
    positions = np.concatenate([grid, np.stack([after] * 3)], axis=1).astype(np.int64)
    ends = np.repeat(np.arange(1, images + 1) * len(tokens), len(tokens)).astype(np.int32)
    ids = paddle.to_tensor(np.tile(tokens, images)[None])
    grids = np.array([[1, rows, columns]] * images)
    return {
        "input_ids": ids,
        "labels": ids.clone(),
        "position_ids": paddle.to_tensor(np.tile(positions, images)[:, None]),
        "pixel_values": paddle.zeros([images * rows * columns, 3, 14, 14]),
        "image_grid_thw": paddle.to_tensor(grids, place=paddle.CPUPlace()),
        "attn_mask_startend_row_indices": paddle.to_tensor(ends[None, None, :, None]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name in ("images", "rows", "columns", "text"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    paddle.set_device("npu")
    model = build()
    optimizer = paddle.optimizer.AdamW(1e-5, parameters=model.parameters(), multi_precision=True)
    model, optimizer = paddle.amp.decorate(model, optimizer, level="O2", dtype="bfloat16", master_grad=True)
    model.train()
    inputs = batch(**vars(arguments))
    for _ in range(2):  # the optimizer's state exists from the first step on
        with paddle.amp.auto_cast(level="O2", dtype="bfloat16"):
            loss = model(**inputs, return_dict=True).loss
        loss.backward()
        optimizer.step()
        optimizer.clear_grad(set_to_zero=False)
    parameters = sum(parameter.size for parameter in model.parameters())
    peak = core.device_memory_stat_peak_value("Allocated", 0) / 2**30
    tokens = inputs["input_ids"].size
    print(f"{parameters / 1e9:.3f} billion parameters, {tokens:,} tokens: peak {peak:.1f} GiB")


if __name__ == "__main__":
    main()
