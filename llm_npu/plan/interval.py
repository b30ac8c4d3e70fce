"""The range around a predicted time that contains 90 % of comparable published runs.

``data/efficiencies.json`` has the 90th percentile of the relative error for each family of published runs,
which were predicted from each other (docs/planning_validation.md). A run belongs to several families; the
widest range applies. In the family `OTHER`, each program's runs are predicted from the other programs' runs,
because no run of this trainer is published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llm_npu.core.cards import Card, read
from llm_npu.models.paddleformers.vision_language import FAMILIES as VISION_LANGUAGE

from .cost import DATA
from .layout import Layout
from .shape import ModelShape

MANY = 64  # cards
LONG = 32768  # tokens

EVERY, OTHER = "every run", "a program outside the fit"
# "every run" is always included because a family of few runs says little about the next run.
FAMILIES: Mapping[str, Callable[[ModelShape, Layout], bool]] = {
    EVERY: lambda _, run: True,
    "data parallel": lambda _, run: run.replica == 1,
    "tensor parallel": lambda _, run: run.tensor_parallel_degree > 1 and run.pipeline_parallel_degree == 1,
    "pipeline": lambda _, run: run.pipeline_parallel_degree > 1,
    "recompute": lambda _, run: run.recompute,
    "experts": lambda shape, _: shape.num_experts > 0,
    f"{LONG // 1024}K tokens and more": lambda _, run: run.max_seq_length >= LONG,
    f"{MANY} cards and more": lambda _, run: run.cards >= MANY,
}
# The largest relative difference between predicted and measured peak memory on the virtual NPU
# (tests/tools/plan/test_plan_memory.py).
OWN_MEMORY = 0.03
# The extent of published runs: card models (910B3 or 910B2 where the page does not say), the most cards, the
# most experts, and the largest degrees.
CARDS, MOST_CARDS, MOST_EXPERTS = ("ascend910b2", "ascend910b3"), 8192, 160
MOST: Mapping[str, int] = {"tensor": 8, "pipeline": 16, "context": 16}


@dataclass(frozen=True)
class Interval:
    """The range of a predicted time.

    Attributes:
        width: w; a predicted time t means t / (1 + w) to t / (1 - w).
        family: the family of runs with the widest range.
        runs: the number of published runs in ``family``.
        unlike: the properties of the run that no published run has, in words.
    """

    width: float
    family: str
    runs: int
    unlike: tuple[str, ...]


def around(value: float, width: float) -> tuple[float, float]:
    """The range of a predicted ``value``."""
    return value / (1 + width), value / (1 - width)


def may_fit(peak: float, limit: float, width: float) -> bool:
    """Whether the lower end of the range of a predicted ``peak`` is within ``limit``."""
    return around(peak, width)[0] <= limit


def close_to(peak: float, limit: float, width: float) -> bool:
    """Whether ``limit`` is within the range of a predicted ``peak``; the run may then run out of memory."""
    return may_fit(peak, limit, width) and around(peak, width)[1] > limit


def families(shape: ModelShape, layout: Layout) -> list[str]:
    """The families of a run, by its model and its layout."""
    return [name for name, holds in FAMILIES.items() if holds(shape, layout)]


def interval(shape: ModelShape, layout: Layout, card: Card) -> Interval:
    """The interval of a predicted time."""
    known = read("efficiencies.json", DATA)["families"]
    unlike = tuple(unlike_published(shape, layout, card))
    # A run unlike all published runs gets the widest range of all families.
    alike = known if unlike else [*families(shape, layout), OTHER]
    width, family = max((known[name]["width"], name) for name in alike)
    return Interval(width, family, known[family]["runs"], unlike)


def unlike_published(shape: ModelShape, layout: Layout, card: Card) -> list[str]:
    """The properties of a run that no published run has, in words."""
    properties = {
        f"more than {MOST_EXPERTS} experts": shape.num_experts > MOST_EXPERTS,
        f"the card {card.name}": card.name not in CARDS,
        f"sharding {layout.sharding}": layout.sharding in ("stage2", "stage3"),
        **{
            f"{name} parallelism of more than {most} cards": getattr(layout, f"{name}_parallel_degree") > most
            for name, most in MOST.items()
        },
        "Ulysses": layout.sep_parallel_degree > 1,
        "DualPipeV": layout.in_v,
        f"more than {MOST_CARDS} cards": layout.cards > MOST_CARDS,
        "a vision tower": shape.model_type in VISION_LANGUAGE,
        "a single card": layout.cards == 1,
        "documents in packed samples": layout.mask == "documents",
    }
    return [words for words, holds in properties.items() if holds]
