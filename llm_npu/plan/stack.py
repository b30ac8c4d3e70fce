"""A training program as the planner sees it: its memory and its time for a layout."""

from __future__ import annotations

from dataclasses import dataclass

from llm_npu.core.cards import Card
from llm_npu.models import other_library
from llm_npu.models.families import FAMILIES

from . import cost
from .layout import Layout
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

    @property
    def overlaps(self) -> bool:
        """Whether a run can choose how tensor-parallel layers overlap communication."""
        return not self.software.graph and not (self.trains_here and other_library.has_flag("overlap"))

    def check(self, shape: ModelShape, layout: Layout) -> None:
        """ValueError with one sentence if the program cannot train ``shape`` with ``layout``."""
        if self.trains_here and shape.model_type in FAMILIES:
            layout.check(shape)
        else:
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
