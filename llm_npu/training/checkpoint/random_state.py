"""Saves and restores all random number generators that a training step can use.

Checkpoints contain the exact state as plain data (`as_plain`):

    {"python": [3, [625 words of 32 bits], null], "numpy": ["MT19937", [624 words], position, 0, 0.0],
     "host": {"device": -1, "seed": 42, "offset": 0, "engine": "312 words of 64 bits, and the position"},
     "device": {...}, "named": {"global_seed": [{...} for each device], ...}}

Words and positions are validated before they are set: numpy and the C++ library do not validate them, and
would read out of bounds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import paddle
from paddle.distributed.fleet.meta_parallel import get_rng_state_tracker
from paddle.framework import core

from llm_npu.core.errors import UserError


def random_state() -> dict:
    """The state of the generators of Python, numpy, host, device and tensor parallelism."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "host": core.default_cpu_generator().get_state(),
        "device": _device_generator().get_state(),
        "named": get_rng_state_tracker().get_states_tracker(),
    }


def set_random_state(state: dict) -> None:
    """Restore a result of ``random_state``."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    core.default_cpu_generator().set_state(state["host"])
    _device_generator().set_state(state["device"])
    get_rng_state_tracker().set_states_tracker(state["named"])


def as_plain(state: dict) -> dict:
    """Convert the result of ``random_state`` to numbers, text, lists and mappings."""
    name, words, *rest = state["numpy"]
    return {
        "python": list(state["python"]),
        "numpy": [name, words.tolist(), *rest],
        "host": _of_generator(state["host"]),
        "device": _of_generator(state["device"]),
        "named": {
            name: [_of_generator(generator) for generator in generators]
            for name, generators in state["named"].items()
        },
    }


def from_plain(state: Mapping, where: str) -> dict:
    """The inverse of ``as_plain``. Raises UserError, naming ``where``, for an invalid ``state``."""
    try:
        version, words, gauss = state["python"]
        name, numpy_words, position, has_gauss, cached = state["numpy"]
        _check(version == 3 and (gauss is None or type(gauss) is float))
        _check(name == "MT19937" and has_gauss in (0, 1) and type(cached) is float)
        words = _unsigned(words, 625, 32)
        _check(words[-1] <= 624 and _unsigned([position], 1, 32)[0] <= 624)
        numpy_words = np.array(_unsigned(numpy_words, 624, 32), np.uint32)
        named = {
            name: [_generator(generator) for generator in generators]
            for name, generators in state["named"].items()
        }
        _check(named.keys() <= get_rng_state_tracker().states_.keys())
        _check(all(len(generators) == len(paddle.get_rng_state()) for generators in named.values()))
        return {
            "python": (version, tuple(words), gauss),
            "numpy": (name, numpy_words, position, has_gauss, cached),
            "host": _generator(state["host"]),
            "device": _generator(state["device"]),
            "named": named,
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        raise UserError(f"{where} has no valid state of this run's random number generators") from None


def _of_generator(state) -> dict:
    device, seed, offset, engine = state.__getstate__()
    return {"device": device, "seed": seed, "offset": offset, "engine": bytes(engine).decode("ascii")}


def _generator(plain: Mapping):
    device = plain["device"]
    _check(type(device) is int and -1 <= device < 1 << 15)
    seed, offset = _unsigned([plain["seed"], plain["offset"]], 2, 64)
    engine = [int(word) for word in plain["engine"].split(" ")]
    _check(_unsigned(engine, 313, 64)[-1] <= 312)  # std::mt19937_64
    state = core.GeneratorState.__new__(core.GeneratorState)
    state.__setstate__((device, seed, offset, list(" ".join(map(str, engine)).encode())))
    return state


def _unsigned(values, count: int, bits: int) -> list[int]:
    """Validate ``values`` as ``count`` unsigned integers of ``bits`` bits."""
    values = [int(value) if isinstance(value, np.integer) else value for value in values]
    _check(len(values) == count and all(type(value) is int and 0 <= value < 1 << bits for value in values))
    return values


def _check(condition: bool) -> None:
    if not condition:
        raise ValueError


def _device_generator():
    place = paddle.framework._current_expected_place_()
    if isinstance(place, paddle.CustomPlace):
        return core.default_custom_device_generator(place)
    return core.default_cpu_generator()
