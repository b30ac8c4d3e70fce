"""The state of every random number generator that a training step may draw from.

Checkpoints hold it as plain data (`as_plain`), bit for bit:

    {"python": [3, [625 words of 32 bits], null], "numpy": ["MT19937", [624 words], position, 0, 0.0],
     "host": {"device": -1, "seed": 42, "offset": 0, "engine": "312 words of 64 bits, and the position"},
     "device": {...}, "named": {"global_seed": [{...} for each device], ...}}

Words and positions are checked before they reach a generator: numpy and the C++ library trust them, and
would read beyond the state.
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
    """The state of Python, numpy, the host, the device, and tensor parallelism's named generators."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "host": core.default_cpu_generator().get_state(),
        "device": _device_generator().get_state(),
        "named": get_rng_state_tracker().get_states_tracker(),
    }


def set_random_state(state: dict) -> None:
    """Restore what ``random_state`` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    core.default_cpu_generator().set_state(state["host"])
    _device_generator().set_state(state["device"])
    get_rng_state_tracker().set_states_tracker(state["named"])


def as_plain(state: dict) -> dict:
    """The result of ``random_state`` as numbers, text, lists and mappings."""
    name, words, *rest = state["numpy"]
    return {
        "python": list(state["python"]),
        "numpy": [name, words.tolist(), *rest],
        "host": _of_generator(state["host"]),
        "device": _of_generator(state["device"]),
        "named": {name: [_of_generator(each) for each in states] for name, states in state["named"].items()},
    }


def from_plain(found: Mapping, where: str) -> dict:
    """The inverse of ``as_plain``. UserError, which names ``where``, if ``found`` is not such a state."""
    try:
        version, words, gauss = found["python"]
        name, numpy_words, position, has_gauss, cached = found["numpy"]
        _check(version == 3 and (gauss is None or type(gauss) is float))
        _check(name == "MT19937" and has_gauss in (0, 1) and type(cached) is float)
        words = _whole_numbers(words, 625, 32)
        _check(words[-1] <= 624 and _whole_numbers([position], 1, 32)[0] <= 624)
        numpy_words = np.array(_whole_numbers(numpy_words, 624, 32), np.uint32)
        named = {name: [_generator(each) for each in states] for name, states in found["named"].items()}
        _check(named.keys() <= get_rng_state_tracker().states_.keys())
        _check(all(len(states) == len(paddle.get_rng_state()) for states in named.values()))
        return {
            "python": (version, tuple(words), gauss),
            "numpy": (name, numpy_words, position, has_gauss, cached),
            "host": _generator(found["host"]),
            "device": _generator(found["device"]),
            "named": named,
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        raise UserError(f"{where} holds no state of the random number generators of this run.") from None


def _of_generator(state) -> dict:
    device, seed, offset, engine = state.__getstate__()
    return {"device": device, "seed": seed, "offset": offset, "engine": bytes(engine).decode("ascii")}


def _generator(found: Mapping):
    device = found["device"]
    _check(type(device) is int and -1 <= device < 1 << 15)
    seed, offset = _whole_numbers([found["seed"], found["offset"]], 2, 64)
    engine = [int(word) for word in found["engine"].split(" ")]
    _check(_whole_numbers(engine, 313, 64)[-1] <= 312)  # std::mt19937_64
    state = core.GeneratorState.__new__(core.GeneratorState)
    state.__setstate__((device, seed, offset, list(" ".join(map(str, engine)).encode())))
    return state


def _whole_numbers(found, count: int, bits: int) -> list[int]:
    """``found`` as ``count`` unsigned integers of ``bits`` bits."""
    found = [int(each) if isinstance(each, np.integer) else each for each in found]
    _check(len(found) == count and all(type(each) is int and 0 <= each < 1 << bits for each in found))
    return found


def _check(condition: bool) -> None:
    if not condition:
        raise ValueError


def _device_generator():
    place = paddle.framework._current_expected_place_()
    if isinstance(place, paddle.CustomPlace):
        return core.default_custom_device_generator(place)
    return core.default_cpu_generator()
