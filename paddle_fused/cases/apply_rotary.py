"""Cases of apply_rotary."""

import numpy as np

from ..ops.rotary import apply_rotary
from .case import OpCase
from .rotary_mul import rotated


def _case(q: tuple, heads: int, table: tuple, positions: np.ndarray | None) -> OpCase:
    """``positions``: those of each token, or None."""
    head_dim, tokens = q[-1], q[:-2]

    def arrays(random):
        angles = random.uniform(0, 2 * np.pi, table)
        found = {"q": random.standard_normal(q), "k": random.standard_normal((*tokens, heads, head_dim))}
        found |= {"cos": np.cos(angles), "sin": np.sin(angles)}
        return found if positions is None else {**found, "positions": positions}

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


CASES = [
    _case((2, 7, 4, 64), 4, (1, 7, 1, 64), None),
    _case((2, 7, 4, 64), 2, (16, 64), None),
    _case((2, 5, 6, 32), 2, (16, 32), np.array([[3, 4, 5, 6, 7], [0, 1, 15, 0, 1]])),
    _case((2, 5, 6, 32), 3, (1, 16, 1, 32), np.array([[8, 7, 6, 5, 4]], np.int32)),
    _case((6, 4, 64), 1, (8, 64), np.array([0, 1, 2, 0, 1, 0])),  # three packed sequences
]


def _draw(random) -> OpCase:
    tokens = tuple(int(size) for size in random.integers(0, 5, random.integers(1, 3)))
    heads, head_dim = int(random.integers(1, 5)), 2 * int(random.integers(1, 70))
    length = tokens[-1] + int(random.integers(1, 4))
    table = (length, head_dim) if random.random() < 0.5 else (1, length, 1, head_dim)
    positions = random.integers(0, length, tokens) if random.random() < 0.7 else None
    return _case((*tokens, heads * int(random.integers(1, 3)), head_dim), heads, table, positions)


DRAW = {"apply_rotary": _draw}
