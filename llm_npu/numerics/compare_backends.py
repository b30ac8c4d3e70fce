"""Runs a step in two ways, with the same weights, batch and random state, and reports the differences.

The first way is that of the run. The second is ``composed``, the fused operators computed by plain Paddle, or
``upstream``, PaddleNLP's own layers. The second runs twice more with perturbed rounding, to measure the
effect
of rounding alone (``comparison``). Experts are chosen as in the first (``routing``). The weights do not
change, and the run continues unaffected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext

import numpy as np
import paddle

import paddle_fused
import virtual_npu
from llm_npu import surgery
from llm_npu.core.ranks import Ranks
from llm_npu.training.checkpoint.random_state import random_state, set_random_state
from llm_npu.training.upstream_trainer import TrainerCallback

from .comparison import Comparison, compare
from .recording import Recording, recording
from .rounding import other_roundings
from .routing import Choices

COMPOSED, UPSTREAM = "composed", "upstream"
OTHER_ROUNDINGS = (1, 2)  # seeds
OF_EXPERTS = ".experts."  # in names of layers whose inputs are the rows routed to them


class CompareWith(TrainerCallback):
    """Compares both ways on the first micro batch of ``trainer``, and passes the lines to ``say``.

    ``way``: "composed" or "upstream". ``switches``: those of ``surgery.apply_fused_kernels``; ``report``: its
    result. Forward and backward run four times before the first step; recordings of all layers are kept on
    the host meanwhile.
    """

    def __init__(self, trainer, way: str, switches: Mapping[str, bool], report, say: Callable[[str], None]):
        self._trainer, self._way, self._switches, self._report = trainer, way, switches, report
        self._say = say
        self._done = False
        self._choices, self._other_rows = Choices(), 0

    def on_load_data_end(self, args, state, control, inputs=None, **kwargs):
        if self._done:
            return
        self._done = True
        before = random_state()
        comparison = self._compare(inputs)
        set_random_state(before)
        paddle_fused.reset_dispatch_log()  # the run's own records
        if virtual_npu.is_active():
            virtual_npu.reset_kernel_record()
        lines = [f"compare  the first batch as it is, and {self._way}:"]
        lines += [f"           {line}" for line in self.lines(comparison)]
        self._log(lines, bool(comparison.parted))

    def lines(self, comparison: Comparison) -> list[str]:
        """The findings, and what is fused in the first layer that differs."""
        lines = comparison.lines()
        if self._choices.count:
            lines.append(
                f"of {self._choices.count:,} choices of experts, {self._way} would make "
                f"{self._choices.otherwise:,} differently; those of the run are used in both"
            )
        if self._other_rows:
            lines.append(
                f"{self._other_rows:,} of experts are not compared: the two ways order their rows differently"
            )
        if comparison.parted:
            layer = comparison.parted[0].name.partition("/")[2].partition(" ")[0].partition("[")[0]
            fused = sorted(
                f"{row.operator} of {row.layer}"
                for row in self._report.rows
                if row.fused and f"{layer}.".startswith(f"{row.layer}.")
            )
            if fused:
                lines.append(f"fused there: {', '.join(fused)}")
        return lines

    def _compare(self, inputs) -> Comparison:
        state = random_state()
        choices = self._choices
        with choices.kept():
            own = self._run(inputs, state)
        with second_way(self._trainer.model, self._way, self._switches):
            inputs = _for_upstream(inputs) if self._way == UPSTREAM else inputs
            with choices.given():
                second = self._run(inputs, state)
            otherwise = choices.otherwise
            noise_floors = []
            for seed in OTHER_ROUNDINGS:
                with choices.given():
                    noise_floors.append(self._run(inputs, state, seed))
            choices.otherwise = otherwise
        rows = [name for name in second if name in own and OF_EXPERTS in name]
        others = {name for name in rows if own[name].shape != second[name].shape}
        self._other_rows = len(others)
        own, second = ({name: run[name] for name in run if name not in others} for run in (own, second))
        return compare(own, second, noise_floors)

    def _run(self, inputs: Mapping, state: dict, seed: int | None = None) -> Recording:
        trainer = self._trainer
        set_random_state(state)
        disturbed = nullcontext() if seed is None else other_roundings(trainer.model, seed)
        with disturbed, recording(trainer.model) as found:  # so the recordings include the perturbation
            trainer.training_step(trainer.model_wrapped, dict(inputs), step_control=0)
        found.add_weight_gradients(trainer.model)
        trainer.optimizer.clear_grad()
        return found

    def _log(self, lines: list[str], parted: bool) -> None:
        """The first process's findings, and those of others with differences."""
        for rank, (theirs, worth) in enumerate(Ranks.of_run().gather((lines, parted))):
            if rank == 0 or worth:
                for line in theirs:
                    self._say(f"rank {rank}: {line}" if rank else line)


@contextmanager
def second_way(model, way: str, switches: Mapping[str, bool]) -> Iterator[None]:
    """Context in which ``model`` computes the second way."""
    if way == COMPOSED:
        with paddle_fused.use_backend("composed", strict=True):
            yield
        return
    surgery.remove_fused_kernels(model)
    try:
        yield
    finally:
        surgery.apply_fused_kernels(model, **switches)


def _for_upstream(inputs: Mapping) -> dict:
    """Replaces ``masks.documents`` by a mask that PaddleNLP's own attention accepts."""
    mask = inputs.get("attention_mask")
    if mask is None or isinstance(mask, (paddle.Tensor, np.ndarray)):
        return dict(inputs)
    width = inputs["input_ids"].shape[1]
    return {**inputs, "attention_mask": paddle.to_tensor(~mask.to_dense(width))}
