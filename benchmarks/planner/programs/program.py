"""The step of a program with published results, and the efficiencies of its releases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from llm_npu.core.cards import Card
from llm_npu.plan.cost import StepTime, step_time
from llm_npu.plan.shape import ModelShape
from llm_npu.plan.step_model.operations import Operation
from llm_npu.plan.step_model.program import Program
from llm_npu.plan.step_model.roofline import Efficiencies, memory_seconds
from llm_npu.plan.step_model.stage import WIDTH

from .feed_forward import GATHER
from .layout import PublishedLayout
from .software import Software
from .stage import ProgramStage


@dataclass(frozen=True)
class ProgramEfficiencies(Efficiencies):
    """Efficiencies of a program.

    Attributes:
        gather: the share of a kernel's bandwidth reached with an index per element.
        earlier, later: slowdown with the kernels of releases before and after October 2024.
    """

    gather: float = 1.0
    earlier: float = 1.0
    later: float = 1.0

    def of(self, kernels: str) -> ProgramEfficiencies:
        """The efficiencies with the ``kernels`` of a release, as in `Software`."""
        if not kernels:
            return self
        names, longer = ("cube", "attention", "memory", "links"), getattr(self, kernels)
        return replace(self, **{name: getattr(self, name) / longer for name in names})


@dataclass(frozen=True)
class PublishedProgram(Program):
    """A program with the properties ``software``."""

    software: Software

    def parts(self, shape: ModelShape, layout: PublishedLayout) -> ProgramStage:
        return ProgramStage(shape, layout, self.software)

    def exchange(self, parts: ProgramStage, weights: float) -> Iterator[Operation]:
        software, sharding = self.software, parts.layout.sharding
        beside = "backward" if software.overlaps_gradients else ""
        gradients = software.gradient_width * weights
        if not sharding:
            yield parts.shard("all_reduce", gradients, "step", beside)
            return
        yield parts.shard("reduce_scatter", gradients, "step", beside)
        beside = "backward" if software.overlaps_weights else ""
        yield parts.shard("all_gather", WIDTH * weights, "step", beside)

    def seconds(self, operation: Operation, card: Card, efficiencies: ProgramEfficiencies) -> float:
        if operation.kind == GATHER:
            memory = memory_seconds(operation, card) / efficiencies.memory
            return operation.times * (memory / efficiencies.gather + efficiencies.launch)
        return super().seconds(operation, card, efficiencies)

    def strides(self, layout: PublishedLayout) -> Mapping[str, int]:
        """Tensor parallelism is innermost, followed by context parallelism, replicas and stages."""
        tensor, context = layout.tensor_parallel_degree, layout.context_parallel_degree
        inner = tensor * context
        stage = inner * layout.data_parallel_degree
        return {"tp": 1, "cp": tensor, "ep": inner, "sharding": tensor, "pp": stage, "dp": tensor}

    def most_hidden(self, layout: PublishedLayout) -> float:
        if layout.overlap == "pipelined" or self.software.interleaves == 1:
            return super().most_hidden(layout)
        return 1 - 1 / self.software.interleaves

    def launches(self, efficiencies: ProgramEfficiencies) -> float:
        return 0.0 if self.software.graph else super().launches(efficiencies)


def published_step_time(
    shape: ModelShape,
    layout: PublishedLayout,
    card: Card,
    efficiencies: ProgramEfficiencies,
    software: Software,
) -> StepTime:
    """Time of one optimizer step of ``software``."""
    return step_time(shape, layout, card, efficiencies.of(software.kernels), PublishedProgram(software))
