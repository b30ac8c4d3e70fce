"""Over how many processes a model's configuration splits the model. Importing it imports no framework."""

from __future__ import annotations

import copy

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
