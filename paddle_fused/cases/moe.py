"""Cases of the operators that mixtures of experts are made of.

T tokens or rows, H hidden, K experts of a token (for a matrix: its depth), E experts, N columns.
"""

import numpy as np

from ..ops.grouped_matmul import COUNTS, CUMULATIVE, grouped_matmul
from ..ops.moe_token_permute import moe_token_permute
from ..ops.moe_token_unpermute import moe_token_unpermute
from .case import OpCase


def _places(indices: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(indices.ravel(), kind="stable"), kind="stable").astype(np.int32)


def _kept(entries: int, num_out_tokens: int | None) -> int:
    return len(range(entries)[: num_out_tokens or None])


# ---- permute


def _permute(tokens, hidden, top_k, experts, num_out_tokens=None, dtype=np.int64) -> OpCase:
    """``top_k`` None gives indices of one dimension."""
    shape = (tokens,) if top_k is None else (tokens, top_k)

    def golden(arrays):
        place = _places(arrays["indices"])
        every = np.empty((place.size, hidden))
        every[place] = np.repeat(arrays["tokens"], top_k or 1, axis=0)
        return (every[: _kept(place.size, num_out_tokens)],)

    return OpCase(
        operator="moe_token_permute",
        name=f"tokens [{tokens}, {hidden}], indices {list(shape)} of {experts}, {num_out_tokens} rows",
        arrays=lambda random: {
            "tokens": random.standard_normal((tokens, hidden)),
            "indices": random.integers(0, experts, shape).astype(dtype),
        },
        call=lambda t: moe_token_permute(t["tokens"], t["indices"], num_out_tokens)[:1],
        golden=golden,
        gradients=("tokens",),
    )


# ---- unpermute


def _unpermute(tokens, hidden, top_k, dropped=0, wide_probs=False) -> OpCase:
    """``top_k`` None: no probs. ``wide_probs``: probs stay float32 beside 16-bit rows."""
    entries = tokens * (top_k or 1)

    def arrays(random):
        return {
            "permuted": random.standard_normal((max(0, entries - dropped), hidden)),
            "sorted_indices": random.permutation(entries).astype(np.int32),
            "probs": None if top_k is None else random.uniform(0, 1, (tokens, top_k)),
        }

    def golden(arrays):
        rows = np.zeros((entries, hidden))
        rows[: len(arrays["permuted"])] = arrays["permuted"]
        rows = rows[arrays["sorted_indices"]]
        if top_k is None:
            return (rows,)
        return ((rows.reshape(tokens, top_k, hidden) * arrays["probs"][..., None]).sum(1),)

    return OpCase(
        operator="moe_token_unpermute",
        name=f"{tokens} tokens, H {hidden}, K {top_k}, {dropped} dropped"
        + (", float32 probs" if wide_probs else ""),
        arrays=arrays,
        call=lambda t: (moe_token_unpermute(t["permuted"], t["sorted_indices"], t.get("probs")),),
        golden=golden,
        gradients=("permuted",) if top_k is None else ("permuted", "probs"),
        keep_float32=("probs",) if wide_probs else (),
    )


# ---- grouped matrix product


def _grouped(sizes, depth, columns, group_list_type, listed=False) -> OpCase:
    """``listed``: group_list is a list of integers, not a tensor."""
    sizes, rows = list(map(int, sizes)), int(sum(sizes))
    group_list = sizes if group_list_type == COUNTS else np.cumsum(sizes).tolist()

    def arrays(random):
        return {
            "x": random.standard_normal((rows, depth)),
            "weight": random.standard_normal((len(sizes), depth, columns)) / np.sqrt(max(1, depth)),
            "group_list": None if listed else np.array(group_list, np.int64),
        }

    def golden(arrays):
        groups = np.split(arrays["x"], np.cumsum(sizes)[:-1])
        return (np.concatenate([x @ w for x, w in zip(groups, arrays["weight"], strict=True)]),)

    return OpCase(
        operator="grouped_matmul",
        name=f"groups {sizes}, [{depth}, {columns}], type {group_list_type}{', a list' if listed else ''}",
        arrays=arrays,
        call=lambda t: (
            grouped_matmul(t["x"], t["weight"], t.get("group_list", group_list), group_list_type),
        ),
        golden=golden,
        gradients=("x", "weight"),
        flops=2 * rows * depth * columns,
        bytes=2 * (rows * depth + len(sizes) * depth * columns + rows * columns),
    )


CASES = [
    _permute(7, 65, 2, 4),
    _permute(9, 16, None, 3, dtype=np.int32),
    _permute(5, 1000, 3, 1),
    _permute(6, 33, 2, 4, num_out_tokens=7),
    _permute(6, 33, 2, 4, num_out_tokens=-3),
    _permute(3, 8, 2, 4, num_out_tokens=-9),
    _permute(40, 8, 4, 6000, num_out_tokens=200),
    _permute(0, 8, 2, 4),
    _permute(200, 250, 2, 8),  # enough rows for several threads
    _unpermute(7, 65, 2),
    _unpermute(9, 16, None),
    _unpermute(5, 1000, 3, wide_probs=True),
    _unpermute(6, 33, 2, dropped=5),
    _unpermute(6, 33, None, dropped=2),
    _unpermute(4, 8, 1, dropped=4),
    _unpermute(0, 8, 2),
    _unpermute(200, 250, 2),
    _grouped([3, 0, 5, 1], 32, 48, CUMULATIVE),
    _grouped([3, 0, 5, 1], 33, 47, COUNTS),
    _grouped([0, 0, 9], 8, 8, CUMULATIVE, listed=True),
    _grouped([70], 130, 200, COUNTS),
    _grouped([130, 0, 70], 200, 400, CUMULATIVE),
    _grouped([1, 1, 1, 1], 1, 1, COUNTS),
    _grouped([0, 0], 8, 8, COUNTS),
]


def _draw_permute(random) -> OpCase:
    tokens, top_k = int(random.integers(0, 12)), random.choice([None, 1, 2, 5])
    rows = random.choice([None, 0, 1, 5, 100, -1, -7, -100])
    return _permute(
        tokens,
        int(random.integers(0, 70)),
        top_k,
        int(random.choice([1, 3, 9, 5000, 1 << 23])),
        None if rows is None else int(rows),
        random.choice([np.int32, np.int64]),
    )


def _draw_unpermute(random) -> OpCase:
    return _unpermute(
        int(random.integers(0, 12)),
        int(random.integers(0, 70)),
        random.choice([None, 1, 2, 5]),
        dropped=int(random.choice([0, 0, 1, 4, 100])),
        wide_probs=bool(random.integers(2)),
    )


def _draw_grouped(random) -> OpCase:
    sizes = random.integers(0, 6, random.integers(1, 6)) * random.integers(0, 2)
    depth, columns = int(random.integers(1, 40)), int(random.integers(1, 40))
    return _grouped(sizes, depth, columns, int(random.integers(2)), listed=bool(random.integers(2)))


DRAW = {
    "moe_token_permute": _draw_permute,
    "moe_token_unpermute": _draw_unpermute,
    "grouped_matmul": _draw_grouped,
}
