"""The features behind --deterministic, --compare_with, --dump_tensors and --check_nan_inf."""

from __future__ import annotations

from llm_npu.config.profile import steps_of
from llm_npu.core.console import say
from llm_npu.training.run import Feature, Run

from .compare_backends import CompareWith
from .dump import Dump
from .nan_inf import NonFiniteCheck
from .reproducible import condition


class Deterministic(Feature):
    """``--deterministic``: states the condition under which another run gives the same bits."""

    def takes_part(self, run: Run) -> bool:
        return run.early.deterministic

    def on_model(self, run: Run) -> None:
        run.notes.append(condition())


class Comparison(Feature):
    """``--compare_with``: runs the first step in both ways."""

    def takes_part(self, run: Run) -> bool:
        return bool(run.arguments.training.compare_with)

    def on_trainer(self, run: Run) -> None:
        way, switches = run.arguments.training.compare_with, run.arguments.fused.of_layers()
        run.trainer.add_callback(CompareWith(run.trainer, way, switches, run.fused, say))


class TensorDump(Feature):
    """``--dump_tensors``: writes outputs and gradients of some steps."""

    def takes_part(self, run: Run) -> bool:
        return bool(run.arguments.training.dump_tensors)

    def on_trainer(self, run: Run) -> None:
        training = run.arguments.training
        steps = steps_of(training.dump_tensors)
        run.trainer.add_callback(Dump(run.trainer, training.output_dir, steps))


class NanInfCheck(Feature):
    """``--check_nan_inf``: stops at the first operator with a non-finite result."""

    def takes_part(self, run: Run) -> bool:
        return run.arguments.training.check_nan_inf

    def on_trainer(self, run: Run) -> None:
        backward = not run.arguments.training.fp16
        check = NonFiniteCheck(run.model, operators=run.device.kind != "card", backward=backward)
        run.trainer.training_step = check.around(run.trainer.training_step)
