"""Cases of moe_token_permute. T tokens, H hidden size, K experts per token."""

import numpy as np

from ..case import OpCase
from .op import moe_token_permute


def _places(indices: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(indices.ravel(), kind="stable"), kind="stable").astype(np.int32)


def _kept(entries: int, num_out_tokens: int | None) -> int:
    return len(range(entries)[: num_out_tokens or None])


def _case(tokens, hidden, top_k, experts, num_out_tokens=None, dtype=np.int64) -> OpCase:
    """If ``top_k`` is None, the indices have one dimension."""
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


CASES = [
    _case(7, 65, 2, 4),
    _case(9, 16, None, 3, dtype=np.int32),
    _case(5, 1000, 3, 1),
    _case(6, 33, 2, 4, num_out_tokens=7),
    _case(6, 33, 2, 4, num_out_tokens=-3),
    _case(3, 8, 2, 4, num_out_tokens=-9),
    _case(40, 8, 4, 6000, num_out_tokens=200),
    _case(0, 8, 2, 4),
    _case(200, 250, 2, 8),  # enough rows for several threads
]


def _random_case(random) -> OpCase:
    tokens, top_k = int(random.integers(0, 12)), random.choice([None, 1, 2, 5])
    rows = random.choice([None, 0, 1, 5, 100, -1, -7, -100])
    return _case(
        tokens,
        int(random.integers(0, 70)),
        top_k,
        int(random.choice([1, 3, 9, 5000, 1 << 23])),
        None if rows is None else int(rows),
        random.choice([np.int32, np.int64]),
    )


RANDOM_CASE = {"moe_token_permute": _random_case}
