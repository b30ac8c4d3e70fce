"""The JSON files of a checkpoint: learning rate schedule, loss scale, random state and run settings.

    scheduler.json             {"last_epoch": 100, "last_lr": 0.0018}
    scaler.json                {"scale": [65536.0], "incr_count": 12, ...}
    rng_state_<rank>.json      ``llm_npu.training.checkpoint.random_state``
    run.json                   ``llm_npu.training.resume.settings``

Numbers are restored exactly: Python writes all digits that a float64 needs, which covers float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from paddle_fused import strict_json

SCHEDULER, SCALER = "scheduler", "scaler"
RUN_FILE = "run.json"


def rng_name(rank: int) -> str:
    """The state's name for the random number generators of ``rank``."""
    return f"rng_state_{rank}"


def file_of(name: str) -> str:
    """The file name of the state ``name``."""
    return f"{name}.json"


def text(state: Mapping) -> str:
    """Serialize ``state`` (numbers, text, numeric arrays, and mappings of these) as JSON."""
    return strict_json.dumps(_plain(state)) + "\n"


def read(folder: Path, name: str) -> Mapping:
    """Read the state ``name`` of the checkpoint ``folder``. Raises UserError if it is missing or damaged."""
    if not (folder / file_of(name)).is_file():
        raise UserError(f"{folder} has no {file_of(name)}; resume from a checkpoint that has it")
    return plain_json.mapping(folder / file_of(name))


def write_run(settings: dict[str, dict], folder: Path) -> None:
    """Write ``run.json`` to a checkpoint."""
    (folder / RUN_FILE).write_text(strict_json.dumps(settings, indent=1) + "\n")


def read_run(folder: Path) -> dict[str, dict]:
    """The settings of the run that wrote the checkpoint ``folder``. Raises UserError if they are missing."""
    try:
        settings = plain_json.mapping(folder / RUN_FILE)
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no {RUN_FILE} with the settings of the run that wrote it; resume from a "
            "checkpoint that has it"
        ) from None
    if not all(isinstance(settings.get(part), dict) for part in ("fixed", "schedule", "mesh")):
        raise UserError(f"{folder / RUN_FILE} must have fixed, schedule and mesh")
    return settings


def like(stored: object, own: object, where: str):
    """Convert ``stored`` to the types of ``own``. Raises UserError, naming ``where``, on a mismatch."""
    if isinstance(own, Mapping):
        if isinstance(stored, Mapping) and own.keys() <= stored.keys():
            return {key: like(stored[key], value, f"{where}, {key}") for key, value in own.items()}
    elif isinstance(own, np.ndarray):
        values = stored.tolist() if isinstance(stored, np.ndarray) else stored
        if isinstance(values, list) and len(values) == own.size and all(map(_is_number, values)):
            return np.array(values, own.dtype).reshape(own.shape)
    elif isinstance(own, bool) or own is None:
        if type(stored) is type(own):
            return stored
    elif _is_number(stored) and (isinstance(stored, int) or not isinstance(own, int)):
        return stored
    expected = f"with {', '.join(own)}" if isinstance(own, Mapping) else f"like {own!r:.40}"
    raise UserError(f"{where}: {stored!r:.40} is not a state {expected}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _plain(value):
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
