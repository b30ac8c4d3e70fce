"""Cases of rotary_mul."""

import numpy as np

from ..ops.rotary import rotary_mul
from .case import OpCase


def rotated(x, cos, sin, mode="half"):
    """x * cos + rotate(x) * sin, in numpy."""
    if mode == "half":
        a, b = np.split(x, 2, -1)
        turned = np.concatenate([-b, a], -1)
    else:
        turned = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return x * cos + turned * sin


def _case(x: tuple, angles: tuple, mode: str, gradients: tuple = ("x",)) -> OpCase:
    # The two halves of cos and of sin differ, so that mixing them up shows.
    return OpCase(
        operator="rotary_mul",
        name=f"{mode}, x {list(x)}, cos {list(angles)}, gradients of {' '.join(gradients)}",
        arrays=lambda random: {
            "x": random.standard_normal(x),
            "cos": random.uniform(-1, 1, angles),
            "sin": random.uniform(-1, 1, angles),
        },
        call=lambda t: (rotary_mul(t["x"], t["cos"], t["sin"], mode),),
        golden=lambda a: (rotated(a["x"], a["cos"], a["sin"], mode),),
        gradients=gradients,
    )


_ALL = ("x", "cos", "sin")
CASES = [
    _case((2, 7, 3, 64), (1, 7, 1, 64), "half"),  # BSND, what the plugin's fused_rope takes
    _case((1, 129, 2, 128), (1, 129, 1, 128), "half"),
    _case((2, 7, 3, 64), (2, 7, 1, 64), "half"),
    _case((2, 5, 3, 10), (2, 5, 3, 10), "half", _ALL),
    _case((2, 3, 7, 64), (1, 1, 7, 64), "half", _ALL),  # BNSD
    _case((7, 2, 3, 66), (7, 1, 1, 66), "half", _ALL),  # SBND
    _case((9, 3, 64), (9, 1, 64), "half", _ALL),  # TND
    _case((2, 7, 3, 64), (1, 7, 1, 64), "interleave"),
    _case((2, 3, 7, 6), (1, 1, 7, 6), "interleave", _ALL),
    _case((9, 3, 2), (9, 1, 2), "interleave"),
]


def _draw(random) -> OpCase:
    dims = [int(size) for size in random.integers(0, 5, random.integers(2, 4))]
    angles = [size if random.random() < 0.5 else 1 for size in dims]
    head_dim = 2 * int(random.integers(1, 70))
    mode = str(random.choice(["half", "interleave"]))
    return _case((*dims, head_dim), (*angles, head_dim), mode)


DRAW = {"rotary_mul": _draw}
