"""Cases of add_rms_norm."""

from ..case import OpCase
from ..rms_norm.cases import EPSILON, name_of, normalised, random_shape
from .op import add_rms_norm


def _golden(arrays):
    total = arrays["x"] + arrays["residual"]
    return normalised(total, arrays["weight"]), total


def _case(*shape: int, dims: int = 1) -> OpCase:
    weight = shape[len(shape) - dims :]
    return OpCase(
        operator="add_rms_norm",
        name=name_of(shape, weight),
        arrays=lambda random: {
            "x": random.standard_normal(shape),
            "residual": random.standard_normal(shape),
            "weight": random.uniform(0.5, 1.5, weight),
        },
        call=lambda t: add_rms_norm(t["x"], t["residual"], t["weight"], EPSILON),
        golden=_golden,
        gradients=("x", "residual", "weight"),
    )


CASES = [
    _case(4, 256),
    _case(3, 5, 65),
    _case(7, 1),
    _case(70, 513),
    _case(2, 3, 5, 7, dims=2),
]


def _random_case(random) -> OpCase:
    shape, dims = random_shape(random)
    return _case(*shape, dims=dims)


RANDOM_CASE = {"add_rms_norm": _random_case}
