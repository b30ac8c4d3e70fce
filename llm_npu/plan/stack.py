"""A training program as the planner sees it: its memory and its time for a layout."""

from __future__ import annotations

from dataclasses import dataclass

from llm_npu.core.cards import Card
from llm_npu.core.errors import UserError
from llm_npu.models import other_library
from llm_npu.models.families import FAMILIES
from llm_npu.models.family import Family

from . import cost
from .layout import GRANULARITIES, SHARDING, Layout
from .memory_model import megatron, memory
from .memory_model.memory import Memory
from .memory_model.release import CURRENT, RELEASES
from .shape import ModelShape
from .step_model.software import STACKS, TRAINER, Software

NAMES = tuple(STACKS)


@dataclass(frozen=True)
class Stack:
    """``name``: a key of STACKS; ``paddle`` is this project's trainer."""

    name: str = "paddle"

    @property
    def software(self) -> Software:
        return STACKS[self.name]

    @property
    def trains_here(self) -> bool:
        """Whether it is this project's trainer."""
        return self.software is TRAINER

    def overlaps(self, shape: ModelShape) -> bool:
        """Whether a run of the model can choose how tensor-parallel layers overlap communication."""
        return not self.software.graph and not self._beside_paddleformers(shape)

    def granularities(self, shape: ModelShape) -> tuple[str, ...]:
        """What a run of the model can recompute."""
        return ("full",) if self._beside_paddleformers(shape) else GRANULARITIES

    @property
    def shardings(self) -> tuple[str, ...]:
        """What a run can divide among replicas: other programs, the optimizer's states only."""
        return SHARDING if self.trains_here else ("", "stage1")

    def _beside_paddleformers(self, shape: ModelShape) -> bool:
        """Whether this trainer runs the model with PaddleFormers, which has neither overlaps nor
        granularities of recompute."""
        return self.trains_here and (other_library.has_flag("overlap") or shape.model_type not in FAMILIES)

    def family(self, shape: ModelShape) -> Family | None:
        """This trainer's record of the model's family, with the other library's models if the installed one
        lacks it; None for other programs."""
        if not self.trains_here:
            return None
        return FAMILIES.get(shape.model_type) or other_library.family(shape.model_type)

    def cuts(self, shape: ModelShape) -> bool:
        """Whether the program cuts the model into pipeline stages, rather than that the planner predicts it
        only."""
        family = self.family(shape)
        return family is None or family.pipeline

    def uncut(self, shape: ModelShape) -> str:
        """What a program that does not cut the model into stages does, in words."""
        other = other_library.family(shape.model_type)
        if other and other.pipeline:
            return f"cuts {shape.name} into stages with {other_library.title()} only"
        return f"does not cut {shape.name} into stages"

    def splits_experts(self, shape: ModelShape) -> bool | None:
        """Whether tensor parallelism divides the experts of a mixture in the program, as it does in the
        prediction; None if the program refuses to."""
        family = self.family(shape)
        if family is None or family.experts is None:
            return True
        way = family.experts.tensor_parallel
        return way and way != "nothing"

    def check(self, shape: ModelShape, layout: Layout) -> None:
        """ValueError with one sentence if the program cannot train ``shape`` with ``layout``.

        What is predicted only passes: pipelines of a model that the program does not cut, context and expert
        parallelism, offload.
        """
        if family := self.family(shape):
            layout.check(shape, family)
            return
        if layout.sharding not in self.shardings:
            raise UserError(
                f"--sharding is {layout.sharding}, but --stack {self.name} is planned as it divides the "
                "optimizer's states; give stage1, or omit --sharding"
            )
        layout.check_division(shape)

    def memory(self, shape: ModelShape, layout: Layout) -> Memory:
        """The memory of a card of every stage."""
        if self.trains_here:
            return memory.peak(shape, layout)
        return megatron.peak(shape, layout, self.software, RELEASES.get(self.name, CURRENT))

    def time(self, shape: ModelShape, layout: Layout, card: Card) -> cost.StepTime:
        return cost.step_time(shape, layout, card, software=self.software)

    def seconds(self, shape: ModelShape, layout: Layout, card: Card) -> float:
        """Of a step."""
        return self.time(shape, layout, card).step_time_s


PADDLE = Stack()
