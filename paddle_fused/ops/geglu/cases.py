"""Cases of geglu."""

import math

import numpy as np
import paddle

from ..case import OpCase
from .op import APPROXIMATIONS, geglu


def _gelu(a, approximate: str):
    if approximate == "tanh":
        return a / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)))
    return a / 2 * (1 + np.vectorize(math.erf, otypes=[np.float64])(a / math.sqrt(2)))


def _two(*shape: int, approximate: str = "none") -> OpCase:
    return OpCase(
        operator="geglu",
        name=f"x and y {list(shape)}, {approximate}",
        arrays=lambda random: {"x": 3 * random.standard_normal(shape), "y": random.standard_normal(shape)},
        call=lambda t: (geglu(t["x"], t["y"], approximate),),
        golden=lambda a: (_gelu(a["x"], approximate) * a["y"],),
        gradients=("x", "y"),
    )


def _halves(*shape: int, approximate: str = "none") -> OpCase:
    half = shape[-1] // 2
    return OpCase(
        operator="geglu",
        name=f"x {list(shape)}, {approximate}",
        arrays=lambda random: {"x": 3 * random.standard_normal(shape)},
        call=lambda t: (geglu(t["x"], approximate=approximate),),
        golden=lambda a: (_gelu(a["x"][..., :half], approximate) * a["x"][..., half:],),
        gradients=("x",),
    )


def _slices() -> OpCase:
    """The halves of one tensor in CANN's order, with the activated half last: strided rows."""
    return OpCase(
        operator="geglu",
        name="y and x slices of [3, 5, 48]",
        arrays=lambda random: {"both": 3 * random.standard_normal((3, 5, 48))},
        call=lambda t: (geglu(t["both"][..., 24:], t["both"][..., :24], "tanh"),),
        golden=lambda a: (_gelu(a["both"][..., 24:], "tanh") * a["both"][..., :24],),
        gradients=("both",),
    )


CASES = [
    *(_two(4, 256, approximate=how) for how in APPROXIMATIONS),
    *(_halves(3, 5, 34, approximate=how) for how in APPROXIMATIONS),
    _two(2, 4099),
    _two(0, 8),
    _halves(4, 512, approximate="tanh"),
    _halves(2),
    _slices(),
]


def _random_case(random) -> OpCase:
    shape = [*map(int, random.integers(0, 5, random.integers(0, 3)))]
    width, approximate = int(random.integers(1, 80)), str(random.choice(APPROXIMATIONS))
    if random.random() < 0.5:
        return _two(*shape, width, approximate=approximate)
    return _halves(*shape, 2 * width, approximate=approximate)


RANDOM_CASE = {"geglu": _random_case}

INVALID_CALLS = [
    ("geglu.even", lambda: geglu(paddle.ones([4, 31]))),
    ("geglu.same_shape", lambda: geglu(paddle.ones([4, 32]), paddle.ones([4, 31]))),
    ("geglu.same_dtype", lambda: geglu(paddle.ones([4, 32]), paddle.ones([4, 32], "float16"))),
]
