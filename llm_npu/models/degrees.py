"""Over how many processes a model's configuration splits the model. Importing it imports no framework."""

from __future__ import annotations

import copy

from .family import Family
from .library import names


def tensor_parallel(config) -> int:
    """The processes that share each layer; 1 without tensor parallelism."""
    return max(getattr(config, names.TENSOR_PARALLEL, 1), 1)


def pipeline_parallel(config) -> int:
    """The stages of the model; 1 without a pipeline."""
    return max(getattr(config, names.PIPELINE_PARALLEL, 1), 1)


def undivided(config):
    """A copy of ``config`` for a process that has the whole model."""
    whole = copy.deepcopy(config)
    setattr(whole, names.TENSOR_PARALLEL, 1)
    setattr(whole, names.PIPELINE_PARALLEL, 1)
    whole.sequence_parallel = False
    for name, value in names.UNDIVIDED.items():
        if hasattr(whole, name):
            setattr(whole, name, value)
    return whole


def divide(config, tensor: int, rank: int) -> None:
    """Set the fields of ``config`` for ``rank`` of ``tensor`` processes that share each layer.

    The model then returns whole logits on every process.
    """
    setattr(config, names.TENSOR_PARALLEL, tensor)
    config.tensor_parallel_rank, config.tensor_parallel_output = rank, False
    for name, value in names.DIVIDED.items():
        if hasattr(config, name) and tensor > 1:
            setattr(config, name, value)


def indivisible(family: Family, config, degree: int) -> str | None:
    """The first field of ``config`` that tensor parallelism splits and ``degree`` does not divide."""
    experts = family.experts
    split = ["num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"]
    if experts:
        split += [experts.size, *([experts.number] if experts.tensor_parallel == "number" else [])]
    return next((name for name in split if (getattr(config, name, 0) or 0) % degree), None)
