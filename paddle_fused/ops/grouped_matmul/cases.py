"""Cases of grouped_matmul. T rows, K depth, E experts, N columns."""

import numpy as np

from ..case import OpCase
from .op import COUNTS, CUMULATIVE, grouped_matmul


def _case(sizes, depth, columns, group_list_type, listed=False, separate=False) -> OpCase:
    """``listed``: group_list is a list of integers, not a tensor. ``separate``: one tensor per weight."""
    sizes, rows = list(map(int, sizes)), int(sum(sizes))
    group_list = sizes if group_list_type == COUNTS else np.cumsum(sizes).tolist()

    names = [f"weight {group}" for group in range(len(sizes))] if separate else ["weight"]

    def weights(tensors):
        return [tensors[name] for name in names] if separate else tensors["weight"]

    def arrays(random):
        drawn = random.standard_normal((len(sizes), depth, columns)) / np.sqrt(max(1, depth))
        return {
            "x": random.standard_normal((rows, depth)),
            **dict(zip(names, drawn if separate else [drawn], strict=True)),
            "group_list": None if listed else np.array(group_list, np.int64),
        }

    def golden(arrays):
        groups = np.split(arrays["x"], np.cumsum(sizes)[:-1])
        return (np.concatenate([x @ w for x, w in zip(groups, weights(arrays), strict=True)]),)

    return OpCase(
        operator="grouped_matmul",
        name=f"groups {sizes}, [{depth}, {columns}], type {group_list_type}"
        + ", a list" * listed
        + ", separate weights" * separate,
        arrays=arrays,
        call=lambda t: (
            grouped_matmul(t["x"], weights(t), t.get("group_list", group_list), group_list_type),
        ),
        golden=golden,
        gradients=("x", *names),
    )


CASES = [
    _case([3, 0, 5, 1], 32, 48, CUMULATIVE),
    _case([3, 0, 5, 1], 33, 47, COUNTS),
    _case([0, 0, 9], 8, 8, CUMULATIVE, listed=True),
    _case([70], 130, 200, COUNTS),
    _case([130, 0, 70], 200, 400, CUMULATIVE),
    _case([1, 1, 1, 1], 1, 1, COUNTS),
    _case([0, 0], 8, 8, COUNTS),
    _case([3, 0, 5, 1], 33, 47, COUNTS, separate=True),
    _case([70, 0, 130], 65, 90, CUMULATIVE, listed=True, separate=True),
    _case([0, 0], 8, 8, COUNTS, separate=True),
]


def _random_case(random) -> OpCase:
    sizes = random.integers(0, 6, random.integers(1, 6)) * random.integers(0, 2)
    depth, columns = int(random.integers(1, 40)), int(random.integers(1, 40))
    listed, separate = (bool(random.integers(2)) for _ in range(2))
    return _case(sizes, depth, columns, int(random.integers(2)), listed, separate)


RANDOM_CASE = {"grouped_matmul": _random_case}
