"""The range that a predicted time stands for: nine of ten published runs like it lie within.

``python -m benchmarks planner --write`` predicts every published run without its own help, and writes the
relative error that nine of ten runs of each family stay within. A run belongs to several families; the
widest applies. One of them has the runs of each program, predicted from those of the others: no run of this
trainer is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from llm_npu.core.cards import Card, read

from .cost import DATA
from .layout import Layout
from .shape import ModelShape

SERVER, MANY = 8, 64  # cards
LONG = 32768  # tokens

EVERY, OTHER = "every run", "a program that no fit has seen"
# "every run" is beside the others because the errors of few runs say little of the next one.
FAMILIES: Mapping[str, Callable[[ModelShape, Layout], bool]] = {
    EVERY: lambda _, one: True,
    "data parallel": lambda _, one: one.replica == 1,
    "tensor parallel": lambda _, one: one.tensor_parallel_degree > 1 and one.pipeline_parallel_degree == 1,
    "pipeline": lambda _, one: one.pipeline_parallel_degree > 1,
    "recompute": lambda _, one: one.recompute,
    "experts": lambda shape, _: shape.num_experts > 0,
    f"{LONG // 1024}K tokens and more": lambda _, one: one.max_seq_length >= LONG,
    f"{MANY} cards and more": lambda _, one: one.cards >= MANY,
}
# What this trainer's peak on the virtual NPU may differ from its prediction (tests/tools/plan/
# test_plan_memory.py).
OWN_MEMORY = 0.03
# Cards of published runs (910B3 or 910B2 where no page says which); the most cards and the most experts of
# one, and its largest degrees.
CARDS, MOST_CARDS, MOST_EXPERTS = ("ascend910b2", "ascend910b3"), 8192, 160
MOST: Mapping[str, int] = {"tensor": 8, "pipeline": 16}


@dataclass(frozen=True)
class Interval:
    """``width``: w for a time t that stands for t / (1 + w) to t / (1 - w). ``family``: the widest, with
    ``runs`` published runs. ``unlike``: in what the run resembles no published one, in words."""

    width: float
    family: str
    runs: int
    unlike: tuple[str, ...]

    def around(self, value: float) -> tuple[float, float]:
        """The range of a time, or with the ends exchanged of a speed."""
        return around(value, self.width)


def around(value: float, width: float) -> tuple[float, float]:
    """The range that a predicted ``value`` stands for."""
    return value / (1 + width), value / (1 - width)


def may_fit(peak: float, limit: float, width: float) -> bool:
    """Whether a part of the range of a predicted ``peak`` of memory is within ``limit``."""
    return around(peak, width)[0] <= limit


def close_to(peak: float, limit: float, width: float) -> bool:
    """Whether ``limit`` is within the range of a predicted ``peak``: the run may run out of memory."""
    return may_fit(peak, limit, width) and around(peak, width)[1] > limit


def families(shape: ModelShape, layout: Layout) -> list[str]:
    """The families of a run, by its model and its layout."""
    return [name for name, holds in FAMILIES.items() if holds(shape, layout)]


def interval(shape: ModelShape, layout: Layout, card: Card) -> Interval:
    """The interval of a predicted time."""
    known = read("efficiencies.json", DATA)["families"]
    unlike = tuple(unlike_published(shape, layout, card))
    # The widest of all where nothing is like the run.
    alike = known if unlike else [*families(shape, layout), OTHER]
    width, family = max((known[name]["width"], name) for name in alike)
    return Interval(width, family, known[family]["runs"], unlike)


def unlike_published(shape: ModelShape, layout: Layout, card: Card) -> Iterator[str]:
    """In what a run resembles no published one, in words."""
    if shape.num_experts > MOST_EXPERTS:
        yield f"more than {MOST_EXPERTS} experts"
    if card.name not in CARDS:
        yield f"the card {card.name}"
    if layout.sharding in ("stage2", "stage3"):
        yield f"sharding {layout.sharding}"
    if "attention" not in layout.fused:  # of the other operators, each is not fused in some
        yield "attention that is not fused"
    for name, most in MOST.items():
        if getattr(layout, f"{name}_parallel_degree") > most:
            yield f"{name} parallelism of more than {most} cards"
    if layout.cards > SERVER and card.between_servers.oversubscription > 1:
        yield "a network with oversubscription"
    if layout.cards > MOST_CARDS:
        yield f"more than {MOST_CARDS} cards"
    if layout.cards == 1:
        yield "a single card"
    if layout.mask == "documents":
        yield "documents in packed samples"
