"""Recordings of steps as files, to compare runs on other machines, devices or versions.

    <output_dir>/tensors/step-3/rank-0/model.safetensors     the arrays, by the names of ``recording``
    <output_dir>/tensors/step-3/rank-0/order.json            the names in the order in which they arose

A step's outputs and their gradients are those of its first micro batch. The gradients of weights are those of
the step, before they are clipped; under fp16 they are still multiplied by the loss scale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from paddlenlp.trainer import TrainerCallback

from llm_npu.core import ranks
from llm_npu.core.tensor_file import Reader
from llm_npu.core.untrusted import plain_json
from llm_npu.models.paddlenlp import stored

from .recording import Recording, recording

FOLDER, ORDER = "tensors", "order.json"


class Dump(TrainerCallback):
    """Writes the recordings of the optimizer steps ``steps``, counted from 1, of ``model``."""

    def __init__(self, model, output_dir: str | Path, steps: range):
        self._model, self._folder, self._steps = model, Path(output_dir) / FOLDER, steps
        self._recording: Recording | None = None
        self._open = ExitStack()

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
    """Write a recording into ``folder``, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    stored.write(recorded, folder)
    (folder / ORDER).write_text(json.dumps(list(recorded)))


class Dumped(Mapping[str, np.ndarray]):
    """The recording in a folder; an array is read when it is asked for. ValueError if there is none."""

    def __init__(self, folder: Path):
        try:
            self._order = plain_json.load(folder / ORDER)
        except OSError as error:
            raise ValueError(f"{folder / ORDER} cannot be read: {error}") from None
        if not isinstance(self._order, list) or not all(isinstance(name, str) for name in self._order):
            raise ValueError(f"{folder / ORDER} must hold a list of names")
        self._arrays = Reader([folder / stored.FILE])
        if set(self._order) != set(self._arrays):
            raise ValueError(f"{folder}: {ORDER} and {stored.FILE} do not name the same tensors")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)


def dumps(folder: str | Path) -> dict[str, Dumped]:
    """{place below ``folder``: recording}, in the order of steps and ranks; "." is ``folder`` itself.

    ValueError when there is none.
    """
    root = Path(folder)
    places = [file.parent.relative_to(root) for file in root.rglob(ORDER)]
    if not places:
        raise ValueError(f"{folder} holds no dump of --dump_tensors: there is no {ORDER} in it or below it")
    return {str(place): Dumped(root / place) for place in sorted(places, key=_number_of_each_part)}


def _number_of_each_part(place: Path) -> list[tuple[int, str]]:
    numbers = [part.rpartition("-")[2] for part in place.parts]
    return [
        (int(number) if number.isdigit() else -1, part)
        for number, part in zip(numbers, place.parts, strict=True)
    ]
