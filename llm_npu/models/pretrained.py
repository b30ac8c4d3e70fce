"""Loads a language model from a local checkpoint for inference."""

from __future__ import annotations

from pathlib import Path

import paddle

from llm_npu.core.errors import UserError

from . import families, presets, weights
from .library import names

DTYPES = ("float32", "bfloat16", "float16")


def load_model(folder: str | Path, dtype: str | None = None):
    """Load the model of the checkpoint in ``folder`` on the current device, in evaluation mode.

    ``folder`` has a config.json and safetensors files in the Hugging Face layout, from this project,
    transformers or InternLM2. ``dtype`` is float32, bfloat16 or float16; the default is the checkpoint's
    dtype, or float32 on the CPU, which does not support 16-bit matmuls. Raises UserError as
    ``presets.model_config`` and ``weights.load``, and for other dtypes.
    """
    config = config_of(folder)
    model = families.cast(families.new_model(config), dtype_of(config, dtype))
    weights.load(model, folder)
    model.eval()
    return model


def config_of(folder: str | Path):
    """The configuration of the checkpoint in ``folder``. Raises UserError as ``presets.model_config``."""
    if not Path(folder).is_dir():
        raise UserError(f"{folder} is not a local directory, and nothing is downloaded")
    return presets.model_config(str(folder), **names.UNFUSED)


def dtype_of(config, requested: str | None) -> str:
    """The dtype of the parameters on the current device, as in ``load_model``."""
    on_cpu = paddle.device.get_device() == "cpu"
    dtype = requested or ("float32" if on_cpu else str(config.dtype or "float32"))
    if dtype not in DTYPES:
        raise UserError(f"dtype is {dtype}; accepted: {', '.join(DTYPES)}")
    if on_cpu and dtype != "float32":
        raise UserError(f"The CPU place does not support matmuls in {dtype}; use float32, or the device npu")
    return dtype
