"""The planner's answer: memory and speed of a run, its bottleneck, and other layouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from llm_npu.core.cards import Card
from llm_npu.core.errors import UserError

from . import cost, trainer
from .interval import LONG, OWN_MEMORY, Interval, around, close_to, interval, may_fit
from .layout import Layout
from .memory_model.memory import Memory, peak
from .search import Found, Search, fitting, search
from .shape import ModelShape
from .step_model.operations import OFFLOAD

# 62432 of a card's 65536 MB are available to programs (`data/cards.json`, memory_source of the 910B2).
SYSTEM = (65536 - 62432) << 20
# HCCL allocates two buffers of 200 MB per communication domain unless HCCL_BUFFSIZE is set (CANN's reference
# of environment variables).
HCCL_BUFFERS = 2 * 200 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Answer:
    """A run with its predicted time and memory.

    Attributes:
        limit: the bytes of a card available to tensors.
        interval: the range of the predicted time.
        change: if the layout does not fit, `cheapest_change`.
    """

    memory_width: ClassVar[float] = OWN_MEMORY  # w: a predicted peak p means p / (1 + w) to p / (1 - w)

    shape: ModelShape
    layout: Layout
    card: Card
    time: cost.StepTime
    memory: Memory
    limit: int
    interval: Interval
    change: Found | None = None
    search: Search | None = None

    @property
    def memory_range(self) -> tuple[float, float]:
        """The range of the predicted peak memory, in bytes."""
        return around(self.memory.peak_memory_bytes, self.memory_width)

    @property
    def fits(self) -> bool:
        """False only if all of `memory_range` is above the limit."""
        return may_fit(self.memory.peak_memory_bytes, self.limit, self.memory_width)

    @property
    def close(self) -> bool:
        """Whether the limit is within `memory_range`, so that the run may run out of memory."""
        return close_to(self.memory.peak_memory_bytes, self.limit, self.memory_width)

    def close_with(self, other: Found) -> bool:
        """`close` of another layout on the same card."""
        limit = usable(self.card, other.layout)
        return close_to(other.memory.peak_memory_bytes, limit, self.memory_width)

    @property
    def shares(self) -> Mapping[str, float]:
        """Seconds of a step by category; they add up to the step."""
        time = self.time
        seconds_of = {
            kind if kind == OFFLOAD else f"compute: {kind}": seconds for kind, seconds in time.compute.items()
        }
        seconds_of |= {
            f"exposed communication: {group}": seconds for group, seconds in time.communication.items()
        }
        seconds_of |= {"pipeline bubble": time.bubble, "optimizer": time.optimizer, "host": time.host}
        return {name: seconds for name, seconds in seconds_of.items() if seconds > 0}

    @property
    def to_change(self) -> dict[str, object]:
        """The arguments that ``change`` changes: name -> value."""
        return changed(self.layout, self.change.layout) if self.change else {}


def planned(
    shape: ModelShape,
    layout: Layout,
    card: Card,
    searched: bool = False,
    overlaps: tuple[str, ...] = (),
) -> Answer:
    """The answer for ``layout`` or, if ``searched``, for the fastest layout that fits.

    Raises ValueError if the trainer does not support ``shape`` with the layout, or if a search finds none
    that fits.

    Args:
        overlaps: the overlap modes that a search tries; by default the mode of ``layout``.
    """
    limit = usable(card, layout)
    result = None
    if searched:
        single = {"cards": 1, "tensor_parallel_degree": 1, "global_batch_size": 0}
        trainer.check(shape, dataclasses.replace(layout, **single))  # errors that no degree can fix
        result = search(
            shape, layout, lambda other: usable(card, other), card.within_server.cards or layout.cards,
            lambda other: cost.step_time(shape, other, card).step_time_s,
            overlaps=overlaps or (layout.overlap,),
        )  # fmt: skip
        if not result.best:
            more = "".join(f". {sentence}" for sentence in left_out(shape, layout).values())
            raise UserError(
                f"{shape.name} does not fit on {layout.cards} {'card' if layout.cards == 1 else 'cards'} "
                f"with {limit / GIB:.1f} GiB for a program: the smallest of {result.considered} layouts "
                f"needs {result.smallest / GIB:.1f} GiB per card; increase --cards, or use a smaller "
                f"--max_seq_length{more}"
            )
        layout = result.best[0].layout
    trainer.check(shape, layout)
    memory = peak(shape, layout)
    limit = usable(card, layout)
    change = None
    if not may_fit(memory.peak_memory_bytes, limit, OWN_MEMORY):
        change = cheapest_change(shape, layout, card)
    return Answer(
        shape=shape,
        layout=layout,
        card=card,
        time=cost.step_time(shape, layout, card),
        memory=memory,
        limit=limit,
        interval=interval(shape, layout, card),
        change=change,
        search=result,
    )


def left_out(shape: ModelShape, layout: Layout) -> dict[str, str]:
    """What a search on the cards of ``layout`` skips, and why, as a sentence without a full stop."""
    reasons = {
        "pipeline parallelism": trainer.no_pipeline(shape),
        "tensor parallelism": trainer.no_tensor_parallelism(shape),
    }
    if layout.max_seq_length >= LONG:
        reasons["sequences split over cards"] = trainer.no_split_sequences(shape)
    skipped = {kind: reason for kind, reason in reasons.items() if reason and layout.cards > 1}
    return {kind: f"The search skipped {kind}: {reason}" for kind, reason in skipped.items()}


def usable(card: Card, layout: Layout) -> int:
    """The bytes of a card available to tensors: its memory minus the system's and HCCL's buffers."""
    kinds = ("tensor", "pipeline", "data")
    groups = (layout.cards > 1) + sum(getattr(layout, f"{kind}_parallel_degree") > 1 for kind in kinds)
    groups += (layout.sequence_degree > 1) + (layout.expert_parallel_degree > 1)
    groups += 1 < layout.expert_parallel_degree < layout.cards  # replicas
    if layout.context_parallel_degree > 1:  # two directions, and the neighbours that share heads
        groups += 2 + (layout.sep_parallel_degree > 1)
    return card.memory - SYSTEM - groups * HCCL_BUFFERS


def changed(before: Layout, after: Layout) -> dict[str, object]:
    """The fields of ``after`` that differ from ``before``; without the granularity if recompute is off."""
    names = (field.name for field in dataclasses.fields(Layout))
    fields = {name: getattr(after, name) for name in names if getattr(before, name) != getattr(after, name)}
    if not after.recompute:
        fields.pop("recompute_granularity", None)
    return fields


def cheapest_change(shape: ModelShape, layout: Layout, card: Card) -> Found | None:
    """Of the layouts on the same cards that fit with the fewest changes, the fastest; None if none fits."""

    def changes(candidate: Found) -> int:
        return len(changed(layout, candidate.layout).keys() - {"recompute_granularity"})

    cards = card.within_server.cards or layout.cards
    fit, _, _ = fitting(shape, layout, lambda other: usable(card, other), cards)
    if not fit:
        return None
    fewest = min(map(changes, fit))
    timed = [
        dataclasses.replace(candidate, seconds=cost.step_time(shape, candidate.layout, card).step_time_s)
        for candidate in fit
        if changes(candidate) == fewest
    ]
    return min(timed, key=lambda candidate: candidate.seconds)
