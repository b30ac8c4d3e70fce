"""Gives LoRA's random matrices values that depend on their names only, so that jobs on any ranks start alike.

``LLM_NPU_ON_IMPORT`` names it as the module of ``paddleformers.peft.lora.lora_model``.
"""

import functools
import zlib

import numpy as np
from paddle.distributed import fleet


def before_library() -> None:
    """Nothing to prepare."""


def after_library() -> None:
    from paddleformers.peft.lora.lora_model import LoRAModel

    build = LoRAModel.__init__

    @functools.wraps(build)
    def __init__(self, model, lora_config):
        build(self, model, lora_config)
        for name, weight in self.model.named_parameters():
            if name.endswith("lora_A"):
                weight.set_value(_matrix(name, weight).astype("float32"))

    LoRAModel.__init__ = __init__


def _matrix(name: str, weight) -> np.ndarray:
    """The rank's rows of the matrix."""
    rows, columns = weight.shape
    part, parts = 0, 1
    if weight.is_distributed:  # a row-parallel layer
        groups = fleet.get_hybrid_communicate_group()
        part, parts = groups.get_model_parallel_rank(), groups.get_model_parallel_world_size()
    random = np.random.default_rng(zlib.crc32(name.encode()))
    whole = random.uniform(-1, 1, [rows * parts, columns]) / np.sqrt(rows * parts)
    return whole[part * rows : (part + 1) * rows]
