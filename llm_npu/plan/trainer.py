"""Which parallelism the trainer supports for a model; the planner refuses or skips the rest."""

from __future__ import annotations

from llm_npu.core.errors import UserError
from llm_npu.models import other_library
from llm_npu.models.families import FAMILIES
from llm_npu.models.family import Family

from .layout import GRANULARITIES, Layout
from .shape import ModelShape


def family(shape: ModelShape) -> Family:
    """The model's family; taken from the other library if the installed one lacks it."""
    return FAMILIES.get(shape.model_type) or other_library.family(shape.model_type)


def with_paddleformers(shape: ModelShape) -> bool:
    """Whether PaddleFormers trains the model, without ``--overlap`` and ``--pipeline_schedule dualpipev``."""
    return other_library.has_flag("overlap") or shape.model_type not in FAMILIES


def may_overlap(shape: ModelShape, layout: Layout) -> bool:
    """Whether tensor-parallel layers of the layout can overlap communication with compute."""
    return layout.tensor_parallel_degree > 1 and layout.sequence_degree == 1 and not with_paddleformers(shape)


def granularities(shape: ModelShape) -> tuple[str, ...]:
    """The recompute granularities that the trainer supports for the model."""
    return ("full",) if with_paddleformers(shape) else GRANULARITIES


def no_pipeline(shape: ModelShape) -> str:
    """Why the model cannot be split into pipeline stages, as the end of a sentence; "" if it can."""
    if family(shape).pipeline:
        return ""
    other = other_library.family(shape.model_type)
    if other and other.pipeline:
        return f"this trainer splits {shape.name} into stages with {other_library.title()} only"
    return f"this trainer does not split {shape.name} into stages"


def no_split_sequences(shape: ModelShape) -> str:
    """Why the model's sequences cannot be split, as the end of a sentence; "" if they can."""
    if family(shape).splits_sequences and not with_paddleformers(shape):
        return ""
    library = " with PaddleFormers" if with_paddleformers(shape) else ""
    return f"this trainer does not split the sequences of {shape.name}{library}"


def no_tensor_parallelism(shape: ModelShape) -> str:
    """Why the planner does not model tensor parallelism here, as the end of a sentence; "" if it does."""
    experts = family(shape).experts
    if experts and not experts.tensor_parallel:
        return f"this trainer does not split the experts of {shape.name}"
    if experts and experts.tensor_parallel == "nothing":
        return f"every process holds the whole experts of {shape.name}, which the planner does not model"
    if shape.num_key_value_heads == 1:
        return f"{shape.name} has a single key-value head, which cannot be split"
    return ""


def check(shape: ModelShape, layout: Layout) -> None:
    """Raises ValueError if the trainer cannot train ``shape`` with ``layout``."""
    stages, tensor = layout.pipeline_parallel_degree, layout.tensor_parallel_degree
    if stages > 1 and (reason := no_pipeline(shape)):
        raise UserError(f"--pipeline_parallel_degree is {stages}, but {reason}; omit it")
    for name, is_used in {"overlap": layout.overlap != "serial", "pipeline_schedule": layout.in_v}.items():
        if is_used and with_paddleformers(shape):
            raise UserError(
                f"--{name} is {getattr(layout, name)}, but this trainer runs {shape.name} with "
                "PaddleFormers, which does not support it; omit it"
            )
    # Before the trainer's own check, whose messages propose what the planner does not model.
    if layout.expert_parallel_degree > 1 and max(tensor, stages) > 1 and not with_paddleformers(shape):
        raise UserError(
            f"--expert_parallel_degree is {layout.expert_parallel_degree}, but the planner models experts "
            "over cards with PaddleNLP only with data parallelism and split sequences; omit "
            "--tensor_parallel_degree and --pipeline_parallel_degree"
        )
    if tensor > 1 and (reason := no_tensor_parallelism(shape)):
        raise UserError(f"--tensor_parallel_degree is {tensor}, but {reason}; omit it")
    layout.check(shape, family(shape))
