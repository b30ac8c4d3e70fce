"""The measured operators and sizes, and the goals."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.report import Goal, Timed, time_record
from benchmarks.work import ITEM_SIZE, OPERATORS, Cost, Work

ROWS = ("rms_norm", "add_rms_norm", "swiglu", "dropout_add_layer_norm", "dropout_add_rms_norm")

# Operator: sizes, in the order of its fields; --quick uses the first line of each operator.
QUICK = {
    **{operator: [(64, 256)] for operator in ROWS},
    "rotary": [(64, 4, 32)],
    "adamw": [(1, 64, 96)],
    "cross_entropy": [(64, 512)],
    "linear": [(64, 128, 96)],
    "linear_cross_entropy": [(64, 128, 512)],
    "attention": [(256, 2, 32, mask) for mask in ("full", "causal", "documents")],
    "moe": [(64, 32, 48, 4, 2)],
}
SIZES = {
    **{operator: [(2048, 4096), (8192, 4096)] for operator in ROWS},
    "swiglu": [(2048, 5504), (2048, 11008), (8192, 11008)],
    "rotary": [(2048, 16, 128), (8192, 32, 128)],
    "dropout_add_layer_norm": [(4096, 2048), (2048, 4096), (8192, 4096)],
    "adamw": [(8, 1024, 2816)],
    "cross_entropy": [(2048, 32000)],
    "linear": [(2048, 4096, 4096)],
    "linear_cross_entropy": [(2048, 1024, 32000)],
    "attention": [
        (4096, 16, 128, "full"),  # must precede the cases that are compared with it
        *((tokens, 16, 128, "causal") for tokens in (1024, 2048, 4096, 8192)),
        *((4096, 16, 128, mask) for mask in ("band", "prefix", "documents")),
    ],
    "moe": [(4096, 1024, 2816, 8, 2)],
}
FORWARD_ONLY = ("adamw", "decoder")  # operators that are a complete step


@dataclass(frozen=True)
class Case:
    """An operator in one dtype, forward only or forward and backward."""

    work: Work
    dtype: str
    backward: bool

    def __str__(self) -> str:
        return f"{self.work.operator} {self.work.label} {self.dtype} {self.way}"

    @property
    def way(self) -> str:
        if self.work.operator in FORWARD_ONLY:
            return "step"
        return "fwd+bwd" if self.backward else "fwd"

    @property
    def cost(self) -> Cost:
        return self.work.cost(ITEM_SIZE[self.dtype], self.backward)

    def timed(self, malloc: str, contender: str) -> Timed:
        return Timed(self.work.operator, self.work.label, self.dtype, self.way, malloc, contender)

    def record(
        self, malloc: str, contender: str, floor: float, seconds: list[float] | None, reason: str | None
    ) -> dict:
        """A goal record for a contender's times, see `time_record`."""
        cost = {"limit": floor, "bytes": self.cost.bytes, "flops": self.cost.flops}
        return time_record(self.timed(malloc, contender), seconds, reason, **cost)

    @property
    def request(self) -> dict:
        """The input of a contender's process for `prepare`."""
        return {
            "operator": self.work.operator,
            "sizes": self.work.sizes,
            "dtype": self.dtype,
            "backward": self.backward,
        }


def cases(
    sizes: dict = SIZES, only: str | None = None, dtypes: tuple[str, ...] = tuple(ITEM_SIZE)
) -> Iterator[Case]:
    """All cases, or those whose name (`str`) contains or matches ``only``, for example "swiglu" or "*8192*
    fwd"."""
    for operator, of in sizes.items():
        for numbers in of:
            for dtype in dtypes:
                for backward in (False,) if operator in FORWARD_ONLY else (False, True):
                    case = Case(OPERATORS[operator](*numbers), dtype, backward)
                    if only is None or only in str(case) or fnmatch.fnmatch(str(case), only):
                        yield case


LIMITED_BY_MEMORY = (*ROWS, "rotary", "adamw", "cross_entropy")


def goals(case: Case, fused: float, floor: float, torch: float | None, full: float | None) -> Iterator[Goal]:
    """The goals of a case.

    Args:
        fused: seconds of a fused contender.
        floor: seconds at the machine's limit.
        torch: seconds of the faster torch contender; None if absent.
        full: seconds of the same attention without a mask.
    """
    operator = case.work.operator
    if operator in LIMITED_BY_MEMORY:
        yield Goal("time / bandwidth limit", fused / floor, 1.3)
    if torch is not None and (faster := _times_faster_than_torch(case)):
        yield Goal("time / torch", fused / torch, 1 / faster)
    if operator == "attention" and full is not None:
        if case.work.mask == "causal":
            yield Goal("time / full mask", fused / full, 0.55)
        elif case.work.mask != "full":
            yield Goal("time / full mask / computed fraction", fused / full / case.work.computed(), 1.15)


def _times_faster_than_torch(case: Case) -> float | None:
    operator = case.work.operator
    if operator in (*LIMITED_BY_MEMORY, "moe"):
        return 1.0
    if operator == "linear_cross_entropy":
        return 2.0
    if operator == "attention" and case.work.mask == "causal":
        if case.dtype == "float32":
            return 1.2
        return 2.0 if case.backward else 1.0
    return None


MEMORY_GOAL = 1 / 8  # peak memory of linear_cross_entropy, relative to that of the logits


def memory_goal(case: Case, peak: float) -> Goal:
    logits = case.work.tokens * case.work.vocabulary * ITEM_SIZE[case.dtype]
    return Goal("peak memory / logits", peak / logits, MEMORY_GOAL)
