"""Cases of rms_norm."""

import numpy as np

from ..ops.rms_norm import rms_norm
from .case import OpCase


def _golden(arrays):
    x = arrays["x"]
    rstd = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
    return (x * rstd * arrays["weight"],)


def _case(*shape: int) -> OpCase:
    return OpCase(
        operator="rms_norm",
        name=f"x {list(shape)}",
        arrays=lambda random: {
            "x": random.standard_normal(shape),
            "weight": random.uniform(0.5, 1.5, shape[-1]),
        },
        call=lambda t: (rms_norm(t["x"], t["weight"], 1e-6),),
        golden=_golden,
        gradients=("x", "weight"),
    )


CASES = [_case(4, 256), _case(3, 5, 65), _case(1, 1), _case(7, 1000)]

DRAW = {
    "rms_norm": lambda random: _case(
        *random.integers(0, 5, random.integers(0, 3)), int(random.integers(1, 80))
    )
}
