"""Writes recordings of steps to files, for comparison with runs on other machines, devices or versions.

    <output_dir>/tensors/step-3/rank-0/model.safetensors     the arrays, by their names in ``recording``
    <output_dir>/tensors/step-3/rank-0/order.json            the names, in the order of recording

Outputs and their gradients are those of the first micro batch of a step. Gradients of weights are those of
the whole step, before clipping; under fp16 they still contain the loss scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from llm_npu.core import ranks
from llm_npu.models import stored
from llm_npu.training.upstream_trainer import TrainerCallback
from paddle_fused import strict_json

from .dumped import ORDER
from .recording import Recording, recording

FOLDER = "tensors"


class Dump(TrainerCallback):
    """Writes recordings of the optimizer steps ``steps``, counted from 1, of the model of ``trainer``."""

    def __init__(self, trainer, output_dir: str | Path, steps: range):
        self._trainer, self._model = trainer, trainer.model
        self._folder, self._steps = Path(output_dir) / FOLDER, steps
        self._recording: Recording | None = None
        self._open = ExitStack()

    def on_train_begin(self, args, state, control, **kwargs):
        """Takes the last place: sequence parallelism sums gradients in a callback that training has added."""
        handler = self._trainer.callback_handler
        handler.callbacks = [*(each for each in handler.callbacks if each is not self), self]

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
    """Write a recording into ``folder``, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    stored.write(recorded, folder)
    (folder / ORDER).write_text(strict_json.dumps(list(recorded)))
