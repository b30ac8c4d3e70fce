"""Cases of rms_norm."""

import numpy as np

from ..case import OpCase
from .op import rms_norm

EPSILON = 1e-6


def normalised(x, weight):
    dims = tuple(range(x.ndim - weight.ndim, x.ndim))
    return x / np.sqrt((x * x).mean(dims, keepdims=True) + EPSILON) * weight


def name_of(shape, weight) -> str:
    return f"x {list(shape)}" + (f", weight {list(weight)}" if len(weight) > 1 else "")


def _golden(arrays):
    return (normalised(arrays["x"], arrays["weight"]),)


def _case(*shape: int, dims: int = 1, float32_weight: bool = False) -> OpCase:
    weight = shape[len(shape) - dims :]
    return OpCase(
        operator="rms_norm",
        name=name_of(shape, weight) + ", float32 weight" * float32_weight,
        arrays=lambda random: {
            "x": random.standard_normal(shape),
            "weight": random.uniform(0.5, 1.5, weight),
        },
        call=lambda t: (rms_norm(t["x"], t["weight"], EPSILON),),
        golden=_golden,
        gradients=("x", "weight"),
        keep_float32=("weight",) if float32_weight else (),
    )


CASES = [
    _case(4, 256),
    _case(3, 5, 65),
    _case(1, 1),
    _case(33),
    _case(7, 1000),
    _case(70, 513),
    _case(2, 3, 5, 7, dims=2),
    _case(3, 5, 65, float32_weight=True),
    _case(40, 96, float32_weight=True),
]


def random_shape(random: np.random.Generator) -> tuple[list[int], int]:
    """A shape, possibly with empty leading dimensions, and the number of its normalized dimensions."""
    leading = random.integers(0, 5, random.integers(0, 3)).tolist()
    normed = random.integers(1, 20, random.integers(1, 3)).tolist()
    return leading + normed, len(normed)


def _random_case(random) -> OpCase:
    shape, dims = random_shape(random)
    return _case(*shape, dims=dims, float32_weight=bool(random.integers(2)))


RANDOM_CASE = {"rms_norm": _random_case}
