"""Chooses the backend and the number of chunks for each shape, identically on all ranks.

When a shape first occurs, its settings are timed and the fastest is chosen; ``serial`` (no overlap) if
nothing is faster. A dry run times nothing and assumes the simplest setting that overlaps: ``mc2`` if the
operator supports the shape, else the fewest chunks. Shapes are those of matmuls, or of expert parallelism.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import paddle
import paddle.distributed as dist

import virtual_npu
from llm_npu.core.errors import UserError
from paddle_fused.expert_parallel import ExpertExchange

from . import backends, mc2
from .product import KINDS, MC2, PIPELINED, SERIAL, Product, Setting

AUTO = "auto"
CHUNKS = (2, 4, 8, 16)
LEAST_GAIN = 0.01  # relative; a smaller gain is noise, and the simpler setting is used


@dataclass(frozen=True)
class OverlapPlan:
    """The choice for ``product``.

    Attributes:
        measured: the time of each setting in seconds; empty if only one setting was available.
        refused: why ``mc2`` was not available, or None.
        assumed: whether other settings were available but not timed, in a dry run.
    """

    product: Product | ExpertExchange
    setting: Setting
    measured: Mapping[Setting, float]
    refused: str | None = None
    assumed: bool = False

    @property
    def gain(self) -> float | None:
        """The gain over serial, as a share of the serial time."""
        if not self.measured:
            return None
        return 1 - self.measured[self.setting] / self.measured[Setting(SERIAL)]

    def __str__(self) -> str:
        if not self.measured:
            reason = "assumed in a dry run, which times nothing" if self.assumed else "the only option"
            return f"overlap: {self.product}: {self.setting}, {reason}"
        chosen, serial = (self.measured[setting] * 1e3 for setting in (self.setting, Setting(SERIAL)))
        because = f"; no mc2: {self.refused}" if self.refused else ""
        times = f"{chosen:.3g} ms, serial {serial:.3g} ms"
        return f"overlap: {self.product}: {self.setting}, {times} ({self.gain:+.1%}){because}"


class Planner:
    """Chooses settings by shape.

    Args:
        customized: settings that are not timed, for example
            ``{"all_reduce:2048x4096x1024": "pipelined:4"}``. A key has the kind (``all_reduce``,
            ``all_gather``, ``reduce_scatter``), the rows and the depth of a rank's left factor, and the
            columns; or only the kind, for all its shapes.
        report: called with each new plan on the group's first rank, ``print`` for example.
        trials: timed runs of each setting.

    Raises:
        ValueError: for an invalid key or setting.
    """

    def __init__(
        self,
        customized: Mapping[str, str | Setting] | None = None,
        report: Callable[[OverlapPlan], object] | None = None,
        trials: int = 5,
    ):
        if not isinstance(trials, int) or trials < 1:
            raise UserError(f"trials is {trials!r}; accepted: a number of runs, 1 or more")
        self._trials = trials
        self._customized = {_key(key): Setting.of(value) for key, value in (customized or {}).items()}
        self._report = report
        self._plans: dict[tuple[Product | ExpertExchange, int], OverlapPlan] = {}

    @property
    def plans(self) -> list[OverlapPlan]:
        """All plans, in the order in which the shapes occurred."""
        return list(self._plans.values())

    def setting(self, product: Product, group) -> Setting:
        """The setting for ``product``. Collective: every rank of ``group`` must call it before computing."""
        return self.plan(product, group).setting

    def plan(self, product: Product, group) -> OverlapPlan:
        """Like `setting`, but returns the whole plan."""
        known = self._plans.get((product, group.id))
        if known is not None:
            return known
        plan = self._customised(product, group) or self._chosen(product, group)
        if plan.setting.backend == MC2:
            mc2.claim(group)
        return self._keep(plan, group)

    def chunks_of_experts(self, group, exchange: ExpertExchange, run: Callable[[int], object]) -> int:
        """The number of chunks for expert parallelism: ``chunks`` of ``paddle_fused.expert_parallel``.

        ``run(n)`` computes the forward pass in n chunks. Collective, as `setting`.
        """
        plan = self._plans.get((exchange, group.id))
        if plan is None:
            chunks = [1, *(count for count in CHUNKS if count <= exchange.experts)]
            settings = [Setting(PIPELINED, count) if count > 1 else Setting(SERIAL) for count in chunks]
            runs = [functools.partial(run, count) for count in chunks]
            plan = self._keep(self._measured(exchange, settings, runs, group), group)
        return plan.setting.chunks

    def _keep(self, plan: OverlapPlan, group) -> OverlapPlan:
        self._plans[plan.product, group.id] = plan
        if self._report is not None and group.rank == 0:
            self._report(plan)
        return plan

    def _customised(self, product: Product, group) -> OverlapPlan | None:
        setting = self._customized.get(product.name, self._customized.get(product.kind))
        if setting is None:
            return None
        if setting.backend == MC2 and (refused := mc2.reason_of_any(product, group)):
            raise UserError(f"{refused}")
        return OverlapPlan(product, setting, {})

    def _chosen(self, product: Product, group) -> OverlapPlan:
        refused = mc2.reason_of_any(product, group)
        settings = settings_for(product, with_mc2=refused is None)
        return self._measured(product, settings, runs_of(product, settings, group), group, refused)

    def _measured(self, product, settings: list[Setting], runs: list, group, refused=None) -> OverlapPlan:
        if len(settings) == 1:
            return OverlapPlan(product, settings[0], {}, refused)
        if virtual_npu.is_dry():
            return OverlapPlan(product, settings[1], {}, refused, assumed=True)
        measured = dict(zip(settings, agreed(seconds(runs, group, self._trials), group), strict=True))
        return OverlapPlan(product, best(measured), measured, refused)


def settings_for(product: Product, with_mc2: bool) -> list[Setting]:
    """The settings to try for ``product``, simplest first."""
    whole = [Setting(PIPELINED, 1)] if product.concurrent else [Setting(MC2)] if with_mc2 else []
    pipelines = [Setting(PIPELINED, chunks) for chunks in CHUNKS if chunks <= product.parts]
    return [Setting(SERIAL), *whole, *pipelines]


def best(times: Mapping[Setting, float]) -> Setting:
    """The fastest setting; the first of several within `LEAST_GAIN`."""
    shortest = min(times.values())
    return next(setting for setting, time in times.items() if time <= shortest * (1 + LEAST_GAIN))


def chooser(text: str, say: Callable[[str], object]) -> Setting | Planner:
    """Parse an argument: a setting, or for ``auto`` a planner that reports its plans."""
    return Planner(report=lambda plan: say(str(plan))) if text == AUTO else Setting.of(text)


@functools.cache
def default_planner() -> Planner:
    """The planner behind ``overlap="auto"``."""
    return Planner()


def _key(key: str) -> str:
    kinds = "|".join(KINDS)
    if not isinstance(key, str) or not re.fullmatch(rf"({kinds})(:\d+x\d+x\d+)?", key):
        raise UserError(
            f"customized: {key!r} is not a shape; accepted: a kind ({', '.join(KINDS)}), optionally with the "
            "sizes of the matmul, for example all_reduce:2048x4096x1024"
        )
    return key


def runs_of(product: Product, settings: Sequence[Setting], group) -> list[Callable[[], object]]:
    """Functions that compute ``product`` with each of ``settings``."""
    left = paddle.full([product.rows, product.depth], 0.5, product.dtype)
    sizes = [product.depth, product.columns]
    right = paddle.full(sizes[::-1] if product.transposed else sizes, 0.5, product.dtype)
    concurrent = None
    if product.concurrent:
        factor = paddle.full([product.rows, product.columns], 0.5, product.dtype)
        concurrent = functools.partial(paddle.matmul, factor, left, transpose_x=True)
    others = (left, right, product.transposed, group, concurrent)
    return [functools.partial(backends.run, product.kind, setting, *others) for setting in settings]


@paddle.no_grad()
def seconds(runs: Sequence[Callable[[], object]], group, turns: int) -> list[float]:
    """Seconds of each of ``runs``, the minimum over several turns after a warm-up.

    Every rank of ``group`` must call it.
    """
    best = [float("inf")] * len(runs)
    for turn in range(turns + 1):
        for position, run in enumerate(runs):
            dist.barrier(group)
            paddle.device.synchronize()
            began = time.perf_counter()
            kept = run()
            paddle.device.synchronize()
            if turn:
                best[position] = min(best[position], time.perf_counter() - began)
            del kept
    return best


def agreed(values: list[float], group) -> list[float]:
    """The first rank's ``values`` on every rank, so that all ranks make the same choice."""
    shared = paddle.to_tensor(values, dtype="float32")
    dist.broadcast(shared, src=group.ranks[0], group=group)
    return [float(value) for value in shared.numpy()]
