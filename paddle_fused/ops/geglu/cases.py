"""Cases of geglu."""

import functools
import math

import numpy as np

from ..gated_cases import Gated, invalid_calls
from .op import APPROXIMATIONS, geglu


def _gelu(approximate: str, a):
    if approximate == "tanh":
        return a / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))
    return a / 2 * (1 + np.vectorize(math.erf, otypes=[np.float64])(a / math.sqrt(2)))


_GEGLU = {
    name: Gated(
        "geglu",
        functools.partial(geglu, approximate=name),
        functools.partial(_gelu, name),
        suffix=f", {name}",
    )
    for name in APPROXIMATIONS
}
_EXACT, _TANH = _GEGLU["none"], _GEGLU["tanh"]

CASES = [
    *(gated.two(4, 256) for gated in _GEGLU.values()),
    *(gated.halves(3, 5, 34) for gated in _GEGLU.values()),
    _EXACT.two(2, 4099),
    _EXACT.two(0, 8),
    _TANH.halves(4, 512),
    _EXACT.halves(2),
    _TANH.slices("y and x", slice(24, 48), slice(24)),  # CANN's order
]
RANDOM_CASE = {"geglu": lambda random: _GEGLU[str(random.choice(APPROXIMATIONS))].random(random)}
INVALID_CALLS = invalid_calls("geglu", geglu)
