"""The small states of a checkpoint as JSON: learning rate schedule, loss scale, random numbers.

    scheduler.json             {"last_epoch": 100, "last_lr": 0.0018}
    scaler.json                {"scale": [65536.0], "incr_count": 12, ...}
    rng_state_<rank>.json      see ``llm_npu.training.checkpoint.random_state``

Numbers survive bit for bit: Python writes as many digits as a float64 needs, which covers float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from paddle_fused import strict_json

SCHEDULER, SCALER = "scheduler", "scaler"


def rng_name(rank: int) -> str:
    """The name of the state of a rank's random number generators."""
    return f"rng_state_{rank}"


def file_of(name: str) -> str:
    """The file of the state ``name``."""
    return f"{name}.json"


def text(state: Mapping) -> str:
    """``state``, of numbers, text, arrays of numbers and mappings of them, as JSON."""
    return strict_json.dumps(_plain(state)) + "\n"


def read(folder: Path, name: str) -> Mapping:
    """The state ``name`` of the checkpoint ``folder``. UserError for a state that is missing or damaged."""
    if not (folder / file_of(name)).is_file():
        raise UserError(f"{folder} has no {file_of(name)}; resume from a checkpoint that has one.")
    return plain_json.mapping(folder / file_of(name))


def like(found: object, own: object, where: str):
    """``found`` in the types of ``own``, a state of the same kind; else UserError, with ``where``."""
    if isinstance(own, Mapping):
        if isinstance(found, Mapping) and own.keys() <= found.keys():
            return {key: like(found[key], value, f"{where}, {key}") for key, value in own.items()}
    elif isinstance(own, np.ndarray):
        values = found.tolist() if isinstance(found, np.ndarray) else found
        if isinstance(values, list) and len(values) == own.size and all(map(_is_number, values)):
            return np.array(values, own.dtype).reshape(own.shape)
    elif isinstance(own, bool) or own is None:
        if type(found) is type(own):
            return found
    elif _is_number(found) and (isinstance(found, int) or not isinstance(own, int)):
        return found
    wanted = f"with {', '.join(own)}" if isinstance(own, Mapping) else f"like {own!r:.40}"
    raise UserError(f"{where}: {found!r:.40} is no state {wanted}.")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _plain(value):
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
