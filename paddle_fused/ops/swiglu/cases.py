"""Cases of swiglu."""

import numpy as np
import paddle

from ..case import OpCase
from .op import swiglu


def _silu(a):
    return a / (1 + np.exp(-a))


def _two(*shape: int) -> OpCase:
    return OpCase(
        operator="swiglu",
        name=f"x and y {list(shape)}",
        arrays=lambda random: {"x": 3 * random.standard_normal(shape), "y": random.standard_normal(shape)},
        call=lambda t: (swiglu(t["x"], t["y"]),),
        golden=lambda a: (_silu(a["x"]) * a["y"],),
        gradients=("x", "y"),
    )


def _halves(*shape: int) -> OpCase:
    half = shape[-1] // 2
    return OpCase(
        operator="swiglu",
        name=f"x {list(shape)}",
        arrays=lambda random: {"x": 3 * random.standard_normal(shape)},
        call=lambda t: (swiglu(t["x"]),),
        golden=lambda a: (_silu(a["x"][..., :half]) * a["x"][..., half:],),
        gradients=("x",),
    )


def _slices() -> OpCase:
    """Gate and up are slices of one tensor, in the order up, gate: strided rows."""
    return OpCase(
        operator="swiglu",
        name="x and y slices of [3, 5, 48]",
        arrays=lambda random: {"both": 3 * random.standard_normal((3, 5, 48))},
        call=lambda t: (swiglu(t["both"][..., 16:48], t["both"][..., :32]),),
        golden=lambda a: (_silu(a["both"][..., 16:48]) * a["both"][..., :32],),
        gradients=("both",),
    )


CASES = [
    _two(4, 256),
    _two(3, 5, 17),
    _two(2, 4099),
    _halves(4, 512),
    _halves(3, 5, 34),
    _halves(2),
    _slices(),
]


def _random_case(random) -> OpCase:
    shape = [*random.integers(0, 5, random.integers(0, 3)), int(random.integers(1, 80))]
    return _two(*map(int, shape)) if random.random() < 0.5 else _halves(*map(int, shape[:-1]), 2 * shape[-1])


RANDOM_CASE = {"swiglu": _random_case}


INVALID_CALLS = [
    ("swiglu.even", lambda: swiglu(paddle.ones([4, 31]))),
    ("swiglu.same_shape", lambda: swiglu(paddle.ones([4, 32]), paddle.ones([4, 31]))),
    ("swiglu.same_dtype", lambda: swiglu(paddle.ones([4, 32]), paddle.ones([4, 32], "float16"))),
]
