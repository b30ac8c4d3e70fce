"""Cases of swiglu."""

import numpy as np

from ..gated_cases import Gated, invalid_calls
from .op import swiglu

_SWIGLU = Gated("swiglu", swiglu, lambda a: a / (1 + np.exp(-a)))

CASES = [
    _SWIGLU.two(4, 256),
    _SWIGLU.two(3, 5, 17),
    _SWIGLU.two(2, 4099),
    _SWIGLU.halves(4, 512),
    _SWIGLU.halves(3, 5, 34),
    _SWIGLU.halves(2),
    _SWIGLU.slices("x and y", slice(16, 48), slice(32)),
]
RANDOM_CASE = {"swiglu": _SWIGLU.random}
INVALID_CALLS = invalid_calls("swiglu", swiglu)
