"""Seconds of a training step, and their breakdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_npu.core.cards import Card, read
from llm_npu.models.flops import flops_per_token

from .layout import Layout
from .shape import ModelShape
from .step_model import program
from .step_model.operations import Operation
from .step_model.program import distinct_stages, micro_batch, once_a_step
from .step_model.roofline import Efficiencies, collective_seconds

DATA = Path(__file__).parent / "data"
LATE = ".weight_gradient"


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step, with the breakdown for the slowest pipeline stage.

    ``step_time_s`` is the sum of compute, communication, bubble, host and optimizer.

    Attributes:
        compute: seconds by kind of operation; recompute is separate under "recompute".
        communication: exposed communication by group.
        hidden: communication that overlaps with matmuls.
        bubble: idle time while waiting for other stages.
        host: idle time while waiting for the host to launch kernels.
        optimizer: clipping and the update, without their communication.
    """

    step_time_s: float
    tokens_per_second_per_card: float
    mfu: float
    compute: Mapping[str, float]
    communication: Mapping[str, float]
    hidden: float
    bubble: float
    host: float
    optimizer: float


def fitted() -> Efficiencies:
    """The efficiencies that were fitted to published runs (docs/planning_validation.md)."""
    return Efficiencies(**read("efficiencies.json", DATA)["efficiencies"])


@dataclass
class Tally:
    """Seconds of a list of operations on one rank, before streams and schedule.

    Attributes:
        forward: of the forward pass.
        weight_gradients: of those that DualPipeV computes where a stage would wait.
    """

    compute: dict[str, float]
    exposed: dict[str, float]
    forward: float = 0.0
    weight_gradients: float = 0.0
    hidden: float = 0.0
    kernels: int = 0

    def hide(self, spent: float, group: str = "tp") -> None:
        """Count ``spent`` seconds of the communication of ``group`` as hidden by matmuls or attention."""
        if spent:
            self.exposed[group] -= spent
            self.hidden += spent

    @property
    def device(self) -> float:
        return sum(self.compute.values()) + sum(self.exposed.values())


def tally(operations: Sequence[Operation], layout: Layout, card: Card, efficiencies: Efficiencies) -> Tally:
    """Seconds of ``operations``.

    An all-gather overlaps with the next matmul, any other collective with the previous one. The share
    ``efficiencies.hidden`` of the shorter of both is hidden, limited by the number of chunks.
    """
    total, apart = Tally({}, {}), program.strides(layout)
    chunked = 1 - 1 / program.CHUNKS if layout.overlap == "pipelined" else 1.0
    share = min(efficiencies.hidden, chunked)
    product, attention, waiting = 0.0, 0.0, []  # seconds of the last matmul; all-gathers before the next
    for operation in operations:
        total.kernels += operation.times
        if operation.kind != "collective":
            spent = program.seconds(operation, card, efficiencies)
            kind = "recompute" if operation.phase == "recompute" else operation.kind
            total.compute[kind] = total.compute.get(kind, 0.0) + spent
            total.forward += spent * (operation.phase == "forward")
            if layout.tensor_parallel_degree == 1 and operation.name.endswith(LATE):
                total.weight_gradients += spent * (operation.name != f"lm_head{LATE}")
            if operation.kind == "attention":
                attention = spent
            if operation.kind == "matmul":
                product = spent
                total.hide(share * sum(min(gather, product) for gather in waiting))
                waiting = []
            continue
        spent = collective_seconds(operation, card, apart[operation.group]) / efficiencies.links
        spent *= operation.times
        total.exposed[operation.group] = total.exposed.get(operation.group, 0.0) + spent
        if operation.overlaps == "matmul" and operation.collective == "all_gather":
            waiting.append(spent)
        elif operation.overlaps == "matmul":
            total.hide(share * min(spent, product))
        elif operation.overlaps == "attention":
            total.hide(share * min(spent, attention), operation.group)
    return total


def pipeline(stages: Sequence[float], micro_batches: int, chunks: int = 1) -> tuple[float, float]:
    """Seconds of a pipelined step, and its bubble: the seconds in which even the slowest stage is idle.

    1F1B (arXiv 2104.04473): once the pipeline is full, the slowest stage is never idle; filling and draining
    adds each other stage once:

        T = m max(t) + (sum(t) - max(t)) / v

    Exact for equal stages; otherwise an upper bound, because a slow first stage drains while others are busy.

    Args:
        stages: t, the seconds of one micro batch, forward and backward, of every stage.
        micro_batches: m.
        chunks: v, the model chunks per stage; interleaved filling takes 1/v of the time.
    """
    slowest = max(stages)
    bubble = (sum(stages) - slowest) / chunks
    return micro_batches * slowest + bubble, bubble


def bubble_in_v(others: Sequence[Tally]) -> float:
    """The bubble of DualPipeV, for P stages of two chunks; exact if the stages are equal:

        max((P - 1) (F + B - 2 W), (P - 1) (2 B - 3 W) - F)

    F, B and W are the seconds of the forward pass, the backward pass and the weight gradients of a chunk. B
    includes W.

    Args:
        others: all stages except the slowest.
    """
    forward = sum(stage.forward for stage in others)
    backward = sum(stage.device for stage in others) - forward
    late = sum(stage.weight_gradients for stage in others)
    return max(forward + backward - 2 * late, 2 * backward - 3 * late - forward / len(others)) / 2


def step_time(
    shape: ModelShape,
    layout: Layout,
    card: Card,
    efficiencies: Efficiencies | None = None,
) -> StepTime:
    """The time of one optimizer step of ``shape`` on ``layout.cards`` of ``card``.

    Args:
        efficiencies: by default the fitted ones.
    """
    efficiencies = efficiencies or fitted()
    same_as = distinct_stages(shape, layout)
    tallies = {
        stage: tally(micro_batch(shape, layout, stage), layout, card, efficiencies)
        for stage in sorted(set(same_as))
    }
    waits = {
        stage: max(0.0, total.kernels * efficiencies.host - total.device) for stage, total in tallies.items()
    }
    seconds = [tallies[stage].device + waits[stage] for stage in same_as]
    times = layout.micro_batches
    slowest = max(tallies, key=lambda stage: tallies[stage].device + waits[stage])
    main = tallies[slowest]
    if layout.in_v:
        bubble = bubble_in_v(
            sorted((tallies[stage] for stage in same_as), key=lambda total: total.device)[:-1]
        )
    else:
        _, bubble = pipeline(seconds, times, layout.chunks)
    ends = (tally(once_a_step(shape, layout, stage), layout, card, efficiencies) for stage in tallies)
    end = max(ends, key=lambda total: total.device)
    whole = times * max(seconds) + bubble + end.device
    communication = {group: times * spent for group, spent in main.exposed.items()}
    for group, spent in end.exposed.items():
        communication[group] = communication.get(group, 0.0) + spent
    speed = layout.tokens_per_step / whole / layout.cards
    return StepTime(
        step_time_s=whole,
        tokens_per_second_per_card=speed,
        mfu=speed * flops_per_token(shape, layout.max_seq_length) / card.peak,
        compute={kind: times * spent for kind, spent in main.compute.items()},
        communication={group: spent for group, spent in communication.items() if spent > 0},
        hidden=times * main.hidden + end.hidden,
        bubble=bubble,
        host=times * waits[slowest],
        optimizer=sum(end.compute.values()),
    )
