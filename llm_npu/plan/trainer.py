"""What this trainer runs of a model, which the planner refuses or searches accordingly."""

from __future__ import annotations

from llm_npu.core.errors import UserError
from llm_npu.models import other_library
from llm_npu.models.families import FAMILIES
from llm_npu.models.family import Family

from .layout import GRANULARITIES, Layout
from .shape import ModelShape


def family(shape: ModelShape) -> Family:
    """The record of the model's family: the other library's if the installed one does not have it."""
    return FAMILIES.get(shape.model_type) or other_library.family(shape.model_type)


def has_overlaps(shape: ModelShape) -> bool:
    """Whether a run of the model can choose how tensor-parallel layers overlap communication."""
    return not _with_paddleformers(shape)


def granularities(shape: ModelShape) -> tuple[str, ...]:
    """What a run of the model can recompute."""
    return ("full",) if _with_paddleformers(shape) else GRANULARITIES


def _with_paddleformers(shape: ModelShape) -> bool:
    return other_library.has_flag("overlap") or shape.model_type not in FAMILIES


def no_pipeline(shape: ModelShape) -> str:
    """Why the model cannot be cut into pipeline stages, as the end of a sentence; "" if it can."""
    if family(shape).pipeline:
        return ""
    other = other_library.family(shape.model_type)
    if other and other.pipeline:
        return f"this trainer cuts {shape.name} into stages with {other_library.title()} only"
    return f"this trainer does not cut {shape.name} into stages"


def no_tensor_parallelism(shape: ModelShape) -> str:
    """Why tensor parallelism of the model is not planned, as the end of a sentence; "" if it is."""
    experts = family(shape).experts
    if experts and not experts.tensor_parallel:
        return f"this trainer does not split the experts of {shape.name}"
    if experts and experts.tensor_parallel == "nothing":
        return f"every process of this trainer has the experts of {shape.name} whole, which is not modelled"
    return ""


def check(shape: ModelShape, layout: Layout) -> None:
    """ValueError with one sentence if the trainer cannot train ``shape`` with ``layout``."""
    stages, tensor = layout.pipeline_parallel_degree, layout.tensor_parallel_degree
    if stages > 1 and (reason := no_pipeline(shape)):
        raise UserError(f"--pipeline_parallel_degree is {stages}, but {reason}; omit it")
    if layout.overlap != "serial" and not has_overlaps(shape):
        raise UserError(
            f"--overlap is {layout.overlap}, but this trainer runs {shape.name} with PaddleFormers, without "
            "it; omit --overlap"
        )
    layout.check(shape, family(shape))
    if tensor > 1 and (reason := no_tensor_parallelism(shape)):
        raise UserError(f"--tensor_parallel_degree is {tensor}, but {reason}; omit it")
