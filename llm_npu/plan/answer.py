"""The planner's answer: does the run fit, how fast is it, what limits it, what would other settings gain?"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from llm_npu.core.cards import Card
from llm_npu.core.errors import UserError

from . import cost, trainer
from .interval import OWN_MEMORY, Interval, around, close_to, interval, may_fit
from .layout import MASKS, OVERLAPS, Layout
from .memory_model.memory import Memory, peak
from .search import Found, Search, fitting, search
from .shape import ModelShape

# Of a card's 65536 MB, 62432 MB are available to programs (`data/cards.json`, the 910B2's memory_source).
SYSTEM = (65536 - 62432) << 20
# HCCL keeps two buffers per communication domain, of 200 MB unless HCCL_BUFFSIZE is set (CANN's reference of
# environment variables).
HCCL_BUFFERS = 2 * 200 << 20
GIB = 1 << 30
CARDS_OF_CHART = tuple(8 << doubling for doubling in range(11))


@dataclass(frozen=True)
class Gain:
    """The cost of the run with one setting changed; ``used``: whether ``what`` is in use."""

    what: str
    used: bool
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Scale:
    """The run on another number of ``cards``, with the samples per card constant if ``grows``, else those per
    step.

    ``speed``: tokens per second and card, or 0 if it cannot run. ``limit``: the reason if it cannot run, else
    where most of the lost time goes.
    """

    cards: int
    grows: bool
    speed: float
    limit: str


@dataclass(frozen=True)
class Answer:
    """``limit``: the bytes of a card that are available to a program. ``change``: the layout that fits with
    the fewest changes, the fastest of these; None if the layout fits, or if none does. ``scaling`` then
    applies to it. ``interval``: what the time stands for."""

    memory_width: ClassVar[float] = OWN_MEMORY  # w for a peak p that stands for p / (1 + w) to p / (1 - w)

    shape: ModelShape
    layout: Layout
    card: Card
    time: cost.StepTime
    memory: Memory
    limit: int
    gains: tuple[Gain, ...]
    scaling: tuple[Scale, ...]
    interval: Interval
    change: Found | None = None
    search: Search | None = None

    @property
    def scaled(self) -> str:
        """What ``scaling`` is of, in words."""
        return "the cheapest change that fits" if self.change else "the same replica"

    @property
    def memory_range(self) -> tuple[float, float]:
        """The bytes that the predicted peak stands for."""
        return around(self.memory.peak_memory_bytes, self.memory_width)

    @property
    def fits(self) -> bool:
        """Whether the run may fit: False only if all of `memory_range` is beyond the limit."""
        return may_fit(self.memory.peak_memory_bytes, self.limit, self.memory_width)

    @property
    def close(self) -> bool:
        """Whether the limit is within `memory_range`, so that the run may run out of memory."""
        return close_to(self.memory.peak_memory_bytes, self.limit, self.memory_width)

    def close_with(self, found: Found) -> bool:
        """`close` of another layout on the same card."""
        limit = usable(self.card, found.layout)
        return close_to(found.memory.peak_memory_bytes, limit, self.memory_width)

    @property
    def shares(self) -> Mapping[str, float]:
        """Seconds of a step by category; they add up to the step."""
        time = self.time
        found = {f"compute: {kind}": seconds for kind, seconds in time.compute.items()}
        found |= {f"exposed communication: {group}": seconds for group, seconds in time.communication.items()}
        found |= {
            "pipeline bubble": time.bubble,
            "optimizer": time.optimizer,
            "host": time.host,
        }
        return {name: seconds for name, seconds in found.items() if seconds > 0}

    @property
    def aicpu_share(self) -> float:
        """The share of a step spent in operators on AICPU or on the host, 0 to 1."""
        return self.time.compute.get("host", 0.0) / self.time.step_time_s

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
    """The answer for ``layout``, or, if ``searched``, for the fastest layout that fits.

    ``overlaps``: what a search tries; by default that of ``layout``.

    ValueError if the trainer cannot train ``shape`` with it, or if no layout of a search fits.
    """
    limit = usable(card, layout)
    found = None
    if searched:
        one = {"cards": 1, "tensor_parallel_degree": 1, "global_batch_size": 0}
        trainer.check(shape, dataclasses.replace(layout, **one))  # what no degree can fix
        found = search(
            shape, layout, lambda one: usable(card, one), card.within_server.cards or layout.cards,
            lambda one: cost.step_time(shape, one, card).step_time_s, overlaps=overlaps or (layout.overlap,),
        )  # fmt: skip
        if not found.best:
            more = "".join(f". {sentence}" for sentence in left_out(shape, layout))
            raise UserError(
                f"{shape.name} does not fit on {layout.cards} {'card' if layout.cards == 1 else 'cards'} "
                f"with {limit / GIB:.1f} GiB for a program: the smallest of {found.considered} layouts needs "
                f"{found.smallest / GIB:.1f} GiB per card; give more --cards, or a smaller --max_seq_length"
                f"{more}"
            )
        layout = found.best[0].layout
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
        gains=gains(shape, layout, card),
        scaling=scaling(shape, change.layout if change else layout, card),
        interval=interval(shape, layout, card),
        change=change,
        search=found,
    )


def left_out(shape: ModelShape, layout: Layout) -> list[str]:
    """What a search on the cards of ``layout`` does not try, in sentences without a full stop."""
    reasons = {
        "pipelines": trainer.no_pipeline(shape),
        "tensor parallelism": trainer.no_tensor_parallelism(shape),
    }
    return [
        f"The search left {what} out, because {reason}"
        for what, reason in reasons.items()
        if reason and layout.cards > 1
    ]


def usable(card: Card, layout: Layout) -> int:
    """The bytes of a card available to tensors: without the system's and HCCL's."""
    kinds = ("tensor", "pipeline", "data")
    groups = (layout.cards > 1) + sum(getattr(layout, f"{kind}_parallel_degree") > 1 for kind in kinds)
    return card.memory - SYSTEM - groups * HCCL_BUFFERS


def changed(before: Layout, after: Layout) -> dict[str, object]:
    """The fields in which two layouts differ; without the granularity if nothing is recomputed."""
    names = (field.name for field in dataclasses.fields(Layout))
    found = {name: getattr(after, name) for name in names if getattr(before, name) != getattr(after, name)}
    if not after.recompute:
        found.pop("recompute_granularity", None)
    return found


def cheapest_change(shape: ModelShape, layout: Layout, card: Card) -> Found | None:
    """The layout on the same cards that fits with the fewest changes, the fastest of these, or None."""

    def changes(one: Found) -> int:
        return len(changed(layout, one.layout).keys() - {"recompute_granularity"})

    cards = card.within_server.cards or layout.cards
    found, _, _ = fitting(shape, layout, lambda one: usable(card, one), cards)
    if not found:
        return None
    fewest = min(map(changes, found))
    timed = [
        dataclasses.replace(one, seconds=cost.step_time(shape, one.layout, card).step_time_s)
        for one in found
        if changes(one) == fewest
    ]
    return min(timed, key=lambda one: one.seconds)


def gains(shape: ModelShape, layout: Layout, card: Card) -> tuple[Gain, ...]:
    """One alternative per fused operator (toggled), and per other mask and overlap."""
    others = []
    for name in sorted(layout.fused | set(OPERATORS)):
        if name == "moe" and not shape.num_experts:
            continue
        used = name in layout.fused
        others.append((f"fused {name}", used, {"fused": layout.fused ^ {name}}))
    for mask in MASKS:
        if mask != layout.mask and _has_mask(shape, layout, mask):
            others.append((f"mask {mask}", False, {"mask": mask}))
    if layout.tensor_parallel_degree > 1 and trainer.has_overlaps(shape):
        others += [(f"overlap {way}", False, {"overlap": way}) for way in OVERLAPS if way != layout.overlap]
    found = []
    for what, used, fields in others:
        other = dataclasses.replace(layout, **fields)
        seconds = cost.step_time(shape, other, card).step_time_s
        found.append(Gain(what, used, seconds, peak(shape, other).peak_memory_bytes))
    return tuple(found)


def _has_mask(shape: ModelShape, layout: Layout, mask: str) -> bool:
    """Whether the run can use ``mask``: a pipeline does not pass documents on."""
    try:
        trainer.check(shape, dataclasses.replace(layout, mask=mask))
    except ValueError:
        return False
    return True


OPERATORS = ("attention", "rms_norm", "rope", "swiglu")


def scaling(shape: ModelShape, layout: Layout, card: Card) -> tuple[Scale, ...]:
    """The same replica on the cards of ``layout`` and on 8 to 8192, with a growing and with a fixed batch."""
    return tuple(
        Scale(cards, grows, *_on(shape, layout, card, cards, grows))
        for grows in (True, False)
        for cards in _cards_of_chart(layout)
    )


def _cards_of_chart(layout: Layout) -> list[int]:
    """Those of ``layout``, and doublings of a server that its replicas fill: 56, 112, ... for 7 stages."""
    odd = layout.replica // (layout.replica & -layout.replica)
    return sorted(
        {layout.cards, *(odd * number for number in CARDS_OF_CHART if odd * number <= CARDS_OF_CHART[-1])}
    )


def _on(shape: ModelShape, layout: Layout, card: Card, cards: int, grows: bool) -> tuple[float, str]:
    """Speed and limit of a `Scale`."""
    replica = layout.replica
    if cards < replica:
        return 0.0, f"a replica needs {replica} cards"
    replicas, samples = cards // replica, layout.global_batch_size
    if grows:
        samples = samples // layout.data_parallel_degree * replicas
    elif samples % (rows := replicas * layout.per_device_train_batch_size):
        if samples < rows:
            return (
                0.0,
                "1 sample per step is too few" if samples == 1 else f"{samples} samples per step are too few",
            )
        return 0.0, f"{samples} samples per step are not a multiple of {rows}"
    try:
        other = dataclasses.replace(layout, cards=cards, global_batch_size=samples)
    except ValueError:  # of the remaining layouts, only interleaved ones
        return 0.0, "too few micro batches for --virtual_pp_degree"
    memory = peak(shape, other).peak_memory_bytes
    if not may_fit(memory, usable(card, other), OWN_MEMORY):
        return 0.0, f"{memory / GIB:.1f} GiB per card do not fit"
    time = cost.step_time(shape, other, card)
    return time.tokens_per_second_per_card, loss(time)


def loss(time: cost.StepTime) -> str:
    """The category on which a step loses most apart from computing, and its share of the step."""
    lost = {f"{group} communication": seconds for group, seconds in time.communication.items()}
    lost |= {"pipeline bubble": time.bubble, "host": time.host, "optimizer": time.optimizer}
    name = max(lost, key=lambda one: lost[one])
    return f"{name} {100 * lost[name] / time.step_time_s:.1f}%" if lost[name] > 0 else "nothing"
