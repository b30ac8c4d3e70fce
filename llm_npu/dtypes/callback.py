"""Audits a training run before its first step and watches it while it runs."""

from __future__ import annotations

from collections.abc import Callable

import virtual_npu
from llm_npu.core import ranks
from llm_npu.core.console import say
from llm_npu.training.run import Feature, Run
from llm_npu.training.upstream_trainer import TrainerCallback

from .auditing import audit
from .report import Report
from .watching import Watch, watch

STEPS_ON_A_CARD = 2  # the hooks slow every operator down slightly


class DtypeCheck(TrainerCallback):
    """Reports with ``say(line)`` whether all dtypes keep the model on the NPU's cores, and warns otherwise.

    Audits the model and the optimizer before the first step, then watches kernels. On the virtual NPU, it
    watches until the end, because watching costs nothing without findings; on other devices for two steps.
    """

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._watch: Watch | None = None
        self._first = 0
        self._report: Report | None = None

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        self._first = state.global_step
        self._log(audit(model, optimizer))
        # With several processes, only rank 0 reports, because all would warn about the same lines.
        action = "warn" if ranks.count() == 1 else "collect"
        self._watch = watch(model, action).__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        if self._watch and not virtual_npu.is_active() and state.global_step - self._first >= STEPS_ON_A_CARD:
            self._end()

    def on_train_end(self, args, state, control, **kwargs):
        self._end()

    def _end(self) -> None:
        if self._watch is None:
            return
        self._watch.stop()
        self._log(self._watch.report())
        self._watch = None

    def _log(self, report: Report) -> None:
        if not ranks.is_first():
            return
        first, *others = str(report).splitlines()
        self._say(f"dtypes   {first}")
        for line in others:
            self._say(f"         {line}")


class DtypeFeature(Feature):
    """``--check_dtypes``, which is on by default."""

    def takes_part(self, run: Run) -> bool:
        return run.arguments.training.check_dtypes

    def on_trainer(self, run: Run) -> None:
        run.trainer.add_callback(DtypeCheck(say))
