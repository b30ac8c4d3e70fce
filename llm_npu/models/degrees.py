"""Parallel degrees of a model's configuration. Importing it imports no framework."""

from __future__ import annotations

import copy
from pathlib import Path

from llm_npu.core.errors import UserError

from .family import Family
from .library import names


def tensor_parallel(config) -> int:
    """The tensor parallel degree; 1 without tensor parallelism."""
    return max(getattr(config, names.TENSOR_PARALLEL, 1), 1)


def pipeline_parallel(config) -> int:
    """The number of pipeline stages; 1 without a pipeline."""
    return max(getattr(config, names.PIPELINE_PARALLEL, 1), 1)


def undivided(config):
    """A copy of ``config`` for a process with the whole model."""
    whole = copy.deepcopy(config)
    setattr(whole, names.TENSOR_PARALLEL, 1)
    setattr(whole, names.PIPELINE_PARALLEL, 1)
    whole.sequence_parallel = False
    for name, value in names.UNDIVIDED.items():
        if hasattr(whole, name):
            setattr(whole, name, value)
    return whole


def divide(config, tensor: int, rank: int) -> None:
    """Set the fields of ``config`` for rank ``rank`` of tensor parallel degree ``tensor``.

    The model then returns whole logits on every process.
    """
    setattr(config, names.TENSOR_PARALLEL, tensor)
    config.tensor_parallel_rank, config.tensor_parallel_output = rank, False
    for name, value in names.DIVIDED.items():
        if hasattr(config, name) and tensor > 1:
            setattr(config, name, value)


def check_tensor_parallel(
    family: Family, config, degree: int, name: str | Path, expert_ranks: int = 1
) -> None:
    """Raise UserError if the model ``name`` of ``config`` cannot be split over ``degree`` ranks.

    ``expert_ranks``: the ranks that share the experts. Experts that are distributed over ranks are not split.
    """
    if degree <= 1:
        return
    experts = family.experts
    distributed = experts is not None and expert_ranks > 1
    if experts and not (experts.tensor_parallel or distributed):
        raise UserError(
            f"the experts of {name} are not split over processes here; remove --tensor_parallel_degree"
        )
    split = ["num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"]
    if distributed:
        split = [field for field in split if field != experts.size]
        if experts.shared:
            split.append(experts.shared)
    elif experts:
        split += [experts.size, *([experts.number] if experts.tensor_parallel == "number" else [])]
    for field in split:
        if (size := getattr(config, field, 0) or 0) % degree:
            raise UserError(
                f"--tensor_parallel_degree is {degree}, but {name} has {field} {size}, which is not a "
                f"multiple of it; specify a degree that divides {size}"
            )
    if distributed and experts.shared_experts:
        size = (getattr(config, experts.shared_experts) or 0) * getattr(config, experts.size)
        if size % degree:
            raise UserError(
                f"--tensor_parallel_degree is {degree}, but the shared experts of {name} have an inner size "
                f"of {size}, which is not a multiple of it; specify a degree that divides {size}"
            )


def check_stages(config, stages: int, name: str | Path) -> None:
    """Raise UserError if the model ``name`` of ``config`` has fewer layers than ``stages``."""
    layers = getattr(config, "num_hidden_layers", stages)
    if stages > layers:
        raise UserError(
            f"--pipeline_parallel_degree is {stages}, but {name} has {layers} layers; use at most {layers}"
        )
