"""The state of every random number generator that a training step may draw from."""

from __future__ import annotations

import random

import numpy as np
import paddle
from paddle.distributed.fleet.meta_parallel import get_rng_state_tracker
from paddle.framework import core


def random_state() -> dict:
    """Of Python, numpy, the host, the device, and the named ones of tensor parallelism."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "host": core.default_cpu_generator().get_state(),
        "device": _device_generator().get_state(),
        "named": get_rng_state_tracker().get_states_tracker(),
    }


def set_random_state(state: dict) -> None:
    """Put back what ``random_state`` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    core.default_cpu_generator().set_state(state["host"])
    _device_generator().set_state(state["device"])
    get_rng_state_tracker().set_states_tracker(state["named"])


def _device_generator():
    place = paddle.framework._current_expected_place_()
    if isinstance(place, paddle.CustomPlace):
        return core.default_custom_device_generator(place)
    return core.default_cpu_generator()
