"""Cases of moe_token_unpermute. T tokens, H hidden size, K experts per token."""

import numpy as np

from ..case import OpCase
from .op import moe_token_unpermute


def _case(tokens, hidden, top_k, dropped=0, wide_probs=False) -> OpCase:
    """``top_k`` None: no probs. ``wide_probs``: float32 probs with 16-bit rows."""
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


CASES = [
    _case(7, 65, 2),
    _case(9, 16, None),
    _case(5, 1000, 3, wide_probs=True),
    _case(6, 33, 2, dropped=5),
    _case(6, 33, None, dropped=2),
    _case(4, 8, 1, dropped=4),
    _case(0, 8, 2),
    _case(200, 250, 2),
]


def _random_case(random) -> OpCase:
    return _case(
        int(random.integers(0, 12)),
        int(random.integers(0, 70)),
        random.choice([None, 1, 2, 5]),
        dropped=int(random.choice([0, 0, 1, 4, 100])),
        wide_probs=bool(random.integers(2)),
    )


RANDOM_CASE = {"moe_token_unpermute": _random_case}
