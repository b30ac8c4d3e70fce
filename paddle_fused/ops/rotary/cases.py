"""Cases of rotary_mul and apply_rotary."""

import numpy as np

from ..case import OpCase
from .op import apply_rotary, rotary_mul


def rotated(x, cos, sin, mode="half"):
    """x * cos + rotate(x) * sin, in numpy."""
    if mode == "half":
        a, b = np.split(x, 2, -1)
        turned = np.concatenate([-b, a], -1)
    else:
        turned = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return x * cos + turned * sin


def _case(x: tuple, angles: tuple, mode: str, gradients: tuple = ("x",)) -> OpCase:
    # The two halves of cos and sin differ, so swapped halves are detected.
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


def _apply_case(q: tuple, heads: int, table: tuple, positions: np.ndarray | None) -> OpCase:
    """``positions``: the position of each token, or None."""
    head_dim, tokens = q[-1], q[:-2]

    def arrays(random):
        angles = random.uniform(0, 2 * np.pi, table)
        tensors_ = {"q": random.standard_normal(q), "k": random.standard_normal((*tokens, heads, head_dim))}
        tensors_ |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        return tensors_ if positions is None else {**tensors_, "positions": positions}

    def golden(a):
        rows = np.arange(tokens[-1]) if positions is None else a["positions"]
        cos, sin = (a[name].reshape(-1, head_dim)[rows][..., None, :] for name in ("cos", "sin"))
        return rotated(a["q"], cos, sin), rotated(a["k"], cos, sin)

    kind = "in order" if positions is None else f"positions {list(positions.shape)}"
    return OpCase(
        operator="apply_rotary",
        name=f"q {list(q)}, {heads} key heads, table {list(table)}, {kind}",
        arrays=arrays,
        call=lambda t: apply_rotary(t["q"], t["k"], t["cos"], t["sin"], t.get("positions")),
        golden=golden,
        gradients=("q", "k"),
    )


_ALL = ("x", "cos", "sin")
CASES = [
    _case((2, 7, 3, 64), (1, 7, 1, 64), "half"),  # BSND, the layout of the plugin's fused_rope
    _case((1, 129, 2, 128), (1, 129, 1, 128), "half"),
    _case((2, 7, 3, 64), (2, 7, 1, 64), "half"),
    _case((2, 5, 3, 10), (2, 5, 3, 10), "half", _ALL),
    _case((2, 3, 7, 64), (1, 1, 7, 64), "half", _ALL),  # BNSD
    _case((7, 2, 3, 66), (7, 1, 1, 66), "half", _ALL),  # SBND
    _case((9, 3, 64), (9, 1, 64), "half", _ALL),  # TND
    _case((2, 7, 3, 64), (1, 7, 1, 64), "interleave"),
    _case((2, 3, 7, 6), (1, 1, 7, 6), "interleave", _ALL),
    _case((9, 3, 2), (9, 1, 2), "interleave"),
    _apply_case((2, 7, 4, 64), 4, (1, 7, 1, 64), None),
    _apply_case((2, 7, 4, 64), 2, (16, 64), None),
    _apply_case((2, 5, 6, 32), 2, (16, 32), np.array([[3, 4, 5, 6, 7], [0, 1, 15, 0, 1]])),
    _apply_case((2, 5, 6, 32), 3, (1, 16, 1, 32), np.array([[8, 7, 6, 5, 4]], np.int32)),
    _apply_case((6, 4, 64), 1, (8, 64), np.array([0, 1, 2, 0, 1, 0])),  # three packed sequences
]


def _random_case(random) -> OpCase:
    dims = [int(size) for size in random.integers(0, 5, random.integers(2, 4))]
    angles = [size if random.random() < 0.5 else 1 for size in dims]
    head_dim = 2 * int(random.integers(1, 70))
    mode = str(random.choice(["half", "interleave"]))
    return _case((*dims, head_dim), (*angles, head_dim), mode)


def _random_apply_case(random) -> OpCase:
    tokens = tuple(int(size) for size in random.integers(0, 5, random.integers(1, 3)))
    heads, head_dim = int(random.integers(1, 5)), 2 * int(random.integers(1, 70))
    length = tokens[-1] + int(random.integers(1, 4))
    table = (length, head_dim) if random.random() < 0.5 else (1, length, 1, head_dim)
    positions = random.integers(0, length, tokens) if random.random() < 0.7 else None
    return _apply_case((*tokens, heads * int(random.integers(1, 3)), head_dim), heads, table, positions)


RANDOM_CASE = {"rotary_mul": _random_case, "apply_rotary": _random_apply_case}
