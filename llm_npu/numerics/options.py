"""The features behind --deterministic, --compare_with, --dump_tensors and --check_nan_inf.

``--dump_tensors`` writes recordings of steps, to compare runs on different machines, devices or releases:

    <output_dir>/tensors/step-3/rank-0/model.safetensors     the arrays, named as in ``recording``
    <output_dir>/tensors/step-3/rank-0/order.json            the names, in recording order

Outputs and their gradients come from the first micro batch of a step. Weight gradients cover the whole step,
before clipping; under fp16 they still contain the loss scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from llm_npu.config.formats import dumped_steps
from llm_npu.core import ranks
from llm_npu.core.console import say
from llm_npu.models import stored
from llm_npu.training.run import Feature, Run
from llm_npu.training.upstream_trainer import TrainerCallback
from paddle_fused import strict_json

from .compare_backends import CompareWith
from .dumped import ORDER
from .nan_inf import NonFiniteCheck
from .recording import Recording, recording
from .reproducible import condition
from .silent_errors import AclErrorCheck, OperatorVerification

FOLDER = "tensors"


class Deterministic(Feature):
    """``--deterministic``: prints the condition under which another run is bit-identical."""

    def takes_part(self, run: Run) -> bool:
        return run.early.deterministic

    def on_model(self, run: Run) -> None:
        run.notes.append(condition())


class Comparison(Feature):
    """``--compare_with``: runs the first step on both backends."""

    def takes_part(self, run: Run) -> bool:
        return bool(run.arguments.training.compare_with)

    def on_trainer(self, run: Run) -> None:
        other, switches = run.arguments.training.compare_with, run.arguments.fused.of_layers()
        run.trainer.add_callback(CompareWith(run.trainer, other, switches, run.fused, say))


class TensorDump(Feature):
    """``--dump_tensors``: writes outputs and gradients of selected steps."""

    def takes_part(self, run: Run) -> bool:
        return bool(run.arguments.training.dump_tensors)

    def on_trainer(self, run: Run) -> None:
        training = run.arguments.training
        steps = dumped_steps(training.dump_tensors)
        run.trainer.add_callback(Dump(run.trainer, training.output_dir, steps))


class NanInfCheck(Feature):
    """``--check_nan_inf``: stops at the first operator with a non-finite result."""

    def takes_part(self, run: Run) -> bool:
        return run.arguments.training.check_nan_inf

    def on_trainer(self, run: Run) -> None:
        backward = not run.arguments.training.fp16
        check = NonFiniteCheck(run.model, operators=run.device.kind != "card", backward=backward)
        run.trainer.training_step = check.around(run.trainer.training_step)


class AclErrors(Feature):
    """``--check_acl_errors``: stops at an operator that CANN rejects. On by default on a card."""

    def takes_part(self, run: Run) -> bool:
        return _every(run) > 0

    def on_trainer(self, run: Run) -> None:
        check = AclErrorCheck(_every(run), say)
        run.trainer.add_callback(check)
        run.trainer.train = check.around(run.trainer.train)


def _every(run: Run) -> int:
    every = run.arguments.training.check_acl_errors
    return int(run.device.kind == "card") if every is None else every


class VerifiedOperators(Feature):
    """``--verify_operators``: checks the operators of the first step. On by default on a card."""

    def takes_part(self, run: Run) -> bool:
        chosen = run.arguments.training.verify_operators
        return not run.device.dry and (run.device.kind == "card" if chosen is None else chosen)

    def on_trainer(self, run: Run) -> None:
        run.trainer.add_callback(OperatorVerification(say))


class Dump(TrainerCallback):
    """Writes recordings of the given optimizer ``steps``, counted from 1."""

    def __init__(self, trainer, output_dir: str | Path, steps: range):
        self._trainer, self._model = trainer, trainer.model
        self._folder, self._steps = Path(output_dir) / FOLDER, steps
        self._recording: Recording | None = None
        self._open = ExitStack()

    def on_train_begin(self, args, state, control, **kwargs):
        """Move to the end of the callbacks: another callback sums gradients under sequence parallelism."""
        handler = self._trainer.callback_handler  # gets a new list, because it is iterating over the old list
        handler.callbacks = [*(callback for callback in handler.callbacks if callback is not self), self]

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 in self._steps:
            self._recording = self._open.enter_context(recording(self._model))

    def on_substep_end(self, args, state, control, **kwargs):
        self._open.close()

    def on_optimizer_begin(self, args, state, control, **kwargs):
        self._open.close()
        if self._recording is not None:
            self._recording.add_weight_gradients(self._model)
            write(self._recording, self._folder / f"step-{state.global_step + 1}" / f"rank-{ranks.number()}")
            self._recording = None


def write(recorded: Mapping[str, np.ndarray], folder: Path) -> None:
    """Write a recording to ``folder``, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    stored.write(recorded, folder)
    (folder / ORDER).write_text(strict_json.dumps(list(recorded)))
