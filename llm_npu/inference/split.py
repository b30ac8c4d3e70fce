"""A model of the library's own tensor-parallel layers, in stages, for inference."""

from __future__ import annotations

from pathlib import Path

from paddle.distributed import fleet

from llm_npu.models import degrees, families, pretrained, weights

from . import stages


def load_model(folder: str | Path, dtype: str | None, pipeline: int):
    """This rank's part of the model of a checkpoint, for ``generate``, after ``fleet.init``."""
    groups = fleet.get_hybrid_communicate_group()
    config = pretrained.config_of(folder)
    degrees.divide(config, groups.get_model_parallel_world_size(), groups.get_model_parallel_rank())
    layers = stages.narrow(config, groups.get_stage_id(), pipeline)
    model = families.cast(families.new_model(config), pretrained.dtype_of(config, dtype))
    weights.load(model, folder, layers)
    model.eval()
    if pipeline > 1:
        stages.connect(model, groups.get_pipe_parallel_group())
    return model
