"""A language model from a local checkpoint, for inference."""

from __future__ import annotations

from pathlib import Path

import paddle

from llm_npu.core.errors import UserError

from . import families, presets, weights
from .library import names

DTYPES = ("float32", "bfloat16", "float16")


def load_model(folder: str | Path, dtype: str | None = None):
    """The model of the checkpoint in ``folder``, on the device that is set, in evaluation mode.

    ``folder`` holds a config.json and safetensors files in the Hugging Face layout: of this project's
    checkpoints, of transformers, of InternLM2. ``dtype``: float32, bfloat16 or float16; by default that of
    the checkpoint, or float32 on the CPU place, which computes no 16-bit products.
    UserError as in ``presets.model_config`` and ``weights.load``, and for another dtype.
    """
    config = config_of(folder)
    model = families.cast(families.new_model(config), dtype_of(config, dtype))
    weights.load(model, folder)
    model.eval()
    return model


def config_of(folder: str | Path):
    """The configuration of the checkpoint in ``folder``; UserError as in ``presets.model_config``."""
    if not Path(folder).is_dir():
        raise UserError(f"{folder} is no local directory, and nothing is downloaded")
    return presets.model_config(str(folder), **names.UNFUSED)


def dtype_of(config, requested: str | None) -> str:
    """The dtype of the parameters on the device that is set, as ``load_model`` describes it."""
    on_cpu = paddle.device.get_device() == "cpu"
    dtype = requested or ("float32" if on_cpu else str(config.dtype or "float32"))
    if dtype not in DTYPES:
        raise UserError(f"dtype is {dtype}; accepted: {', '.join(DTYPES)}.")
    if on_cpu and dtype != "float32":
        raise UserError(f"The CPU place computes no products in {dtype}; use float32, or the device npu.")
    return dtype
