"""Counts the memory of fine-tuning PaddleOCR-VL-0.9B in a dry run, which computes nothing.

    VIRTUAL_NPU_DRY=1 llm-npu formers examples/ocr/count_memory.py --images 8 --rows 24 --columns 32 --text 64

A batch has ``--images`` images of ``--rows`` x ``--columns`` patches, each with ``--text`` tokens of text.
``--lora_rank`` and ``--freeze_config`` are the keys of the published files. As in PaddleFormers' trainer,
weights and activations are bfloat16; gradients, AdamW's moments and its copy of the trained weights are
float32; and each layer is recomputed in the backward pass.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import paddle
from paddle.base import core
from paddle.distributed.fleet.utils import mix_precision_utils
from paddleformers.cli.utils import llm_utils, mllm_utils
from paddleformers.peft import LoRAConfig, LoRAModel
from paddleformers.transformers.paddleocr_vl.configuration import PaddleOCRVLConfig
from paddleformers.transformers.paddleocr_vl.modeling import PaddleOCRVLForConditionalGeneration

TEXT_TOKEN = 9
MERGED = 2  # patches of a token of the decoder, in each direction
AUTO_CAST = {  # as in the trainer, so that embeddings are bfloat16
    "custom_black_list": {"reduce_sum", "c_softmax_with_cross_entropy"},
    "custom_white_list": {"lookup_table", "lookup_table_v2"},
    "level": "O2",
    "dtype": "bfloat16",
}


def published() -> PaddleOCRVLConfig:
    """The sizes of the published config.json."""
    return PaddleOCRVLConfig(
        vocab_size=103424,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=18,
        num_attention_heads=16,
        num_key_value_heads=2,
        head_dim=128,
        rope_theta=500000,
        rope_scaling={"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"},
        image_token_id=100295,
        vision_config={
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "image_size": 384,
            "patch_size": 14,
        },
    )


def build(config: PaddleOCRVLConfig, lora_rank: int, freeze_config: str) -> paddle.nn.Layer:
    """The bfloat16 model, with the weights that the published files train."""
    for part in (config, config.vision_config):
        part._attn_implementation = "flashmask"
        part.recompute_granularity, part.recompute_method, part.recompute_num_layers = "full", "uniform", 1
    paddle.set_default_dtype("bfloat16")
    model = PaddleOCRVLForConditionalGeneration(config)
    if lora_rank:
        targets = llm_utils.get_lora_target_modules(model)
        targets = mllm_utils.get_multimodel_lora_target_modules(model, targets, freeze_config)
        lora = LoRAConfig(target_modules=targets, r=lora_rank, lora_alpha=2 * lora_rank, dtype="bfloat16")
        model = LoRAModel(model, lora)
    elif freeze_config:
        mllm_utils.freeze_model_parameters(model, freeze_config)
    paddle.set_default_dtype("float32")
    model.train()
    return model


def batch(image_token: int, images: int, rows: int, columns: int, text: int) -> dict[str, paddle.Tensor]:
    """One row without padding. The grids stay on the host: a dry run knows no values of the device."""
    height, width = rows // MERGED, columns // MERGED
    tokens = np.array([image_token] * (height * width) + [TEXT_TOKEN] * text)
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
    parser.add_argument("--lora_rank", type=int, default=0)
    parser.add_argument("--freeze_config", default="", help="such as 'freeze_vision freeze_aligner'")
    parser.add_argument("--model", type=Path, help="a folder with another config.json")
    arguments = parser.parse_args()
    paddle.set_device("npu")
    config = PaddleOCRVLConfig.from_pretrained(arguments.model) if arguments.model else published()
    model = build(config, arguments.lora_rank, arguments.freeze_config)
    parameters = model.parameters()
    trained = [parameter for parameter in parameters if not parameter.stop_gradient]
    clip = paddle.nn.ClipGradByGlobalNorm(1.0)
    optimizer = paddle.optimizer.AdamW(1e-5, parameters=trained, grad_clip=clip, multi_precision=True)
    mix_precision_utils.MixPrecisionLayer(model, dtype="bfloat16")
    optimizer = mix_precision_utils.MixPrecisionOptimizer(optimizer)
    sizes = (arguments.images, arguments.rows, arguments.columns, arguments.text)
    inputs = batch(config.image_token_id, *sizes)
    core.device_memory_stat_reset_peak_value("Allocated", 0)  # without initialization
    for _ in range(2):  # the optimizer's state and the gradients exist from the first step on
        with paddle.amp.auto_cast(**AUTO_CAST):
            loss = model(**inputs, return_dict=True).loss
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        del loss
    print(f"{size(parameters):,.1f} million parameters, {size(trained):,.1f} million trained")
    state = core.device_memory_stat_current_value("Allocated", 0) / 2**20
    peak = core.device_memory_stat_peak_value("Allocated", 0) / 2**20
    print(f"{inputs['input_ids'].size:,} tokens: state {state:,.1f} MiB, peak {peak:,.1f} MiB")


def size(weights: list[paddle.Tensor]) -> float:
    """Millions of elements."""
    return sum(weight.size for weight in weights) / 1e6


if __name__ == "__main__":
    main()
