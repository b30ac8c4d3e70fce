"""CANN's sparse modes as the bands of a plan, against CANN's description of each mode, key by key.

``test_flash_attention_modes`` runs each mode; here are more lengths and bands, without an operator.
"""

import numpy as np
import pytest
from attention_operator import enumerated
from mask_strategies import block_diagonal

from paddle_fused.masks import shapes_of
from paddle_fused.masks.modes import UNBOUNDED, SparseMode, hidden_matrix

SIZES = [(1, 1), (1, 6), (6, 1), (3, 7), (7, 3), (5, 5)]
TOKENS = [(UNBOUNDED, UNBOUNDED), (UNBOUNDED, 0), (2, 0), (0, 2), (1, 1), (3, -2), (-2, 3), (4, -3)]


def described(mode: int, sq: int, skv: int, pre: int, next_: int, prefix=0) -> np.ndarray:
    """keep [Sq, Skv] of modes 0 to 6, from CANN's document."""
    shift = skv - sq
    visible = {
        0: lambda i, j: i - pre <= j <= i + next_,
        1: lambda i, j: True,
        2: lambda i, j: j <= i,
        3: lambda i, j: j <= i + shift,
        4: lambda i, j: i + shift - pre <= j <= i + shift + next_,
        5: lambda i, j: j <= i + shift or j < prefix,
        6: lambda i, j: j <= i + shift or j < prefix,
    }[mode]
    return np.array([[visible(i, j) for j in range(skv)] for i in range(sq)], bool).reshape(sq, skv)


def of_bands(plan, sq: int, skv: int) -> list[np.ndarray]:
    return [enumerated(sq, skv, *band, plan.align) for band in plan.bands]


@pytest.mark.parametrize("sq, skv", SIZES)
@pytest.mark.parametrize("mode", range(7))
def test_modes_of_a_batch(mode, sq, skv):
    prefixes = (0, skv // 2, skv) if mode in (5, 6) else None
    for pre, next_ in TOKENS:
        mask = SparseMode(mode, pre, next_, prefixes)
        expected = [described(mode, sq, skv, pre, next_, prefix) for prefix in prefixes or (0,)]
        for known in ((3, sq, 2, 8), (3, skv, 2, 8)), ((-1, -1, 2, 8), (-1, -1, 2, 8)):
            plan = mask.plan(mask.parts, shapes_of("BSND", *known))
            np.testing.assert_array_equal(of_bands(plan, sq, skv), expected, err_msg=f"{pre}, {next_}")
        if mode not in (0, 1, 5):  # hidden_matrix is the reference of the compiler
            for prefix, keep in zip(prefixes or (0,), expected, strict=True):
                hidden = hidden_matrix(mode, sq, skv, pre_tokens=pre, next_tokens=next_, prefix=prefix)
                np.testing.assert_array_equal(~hidden, keep)


SEQUENCES = [
    ([5], [7]),
    ([1, 3, 1], [1, 4, 1]),
    ([2, 2, 0, 2, 2], [2, 2, 0, 2, 2]),
    ([0, 4, 3, 0], [3, 6, 5, 2]),
]


@pytest.mark.parametrize("lengths", SEQUENCES, ids=str)
@pytest.mark.parametrize("mode", [0, 2, 3, 4, 6, 7, 8])
def test_modes_of_packed_sequences(mode, lengths):
    used = [i for i, length in enumerate(lengths[0]) if length]
    prefixes = tuple(length // 2 for length in lengths[1])
    band_of = {7: used[-1], 8: used[0]}.get(mode)  # the sequence with a band, in mode 4
    others = {7: 3, 8: 2}.get(mode, mode)
    ends = [np.cumsum([0, *lens]).tolist() for lens in lengths]
    shapes = shapes_of("TND", *((end[-1], 2, 8) for end in ends), *ends)
    for pre, next_ in TOKENS:
        mask = SparseMode(mode, pre, next_, prefixes if mode == 6 else None)
        plan = mask.plan(mask.parts, shapes)
        bands = plan.bands * len(lengths[0]) if len(plan.bands) == 1 else plan.bands
        by_bands, by_mode = [], []
        for s, (q, k) in enumerate(zip(*lengths, strict=True)):
            by_bands.append(~enumerated(q, k, *bands[s], plan.align))
            by_mode.append(~described(4 if s == band_of else others, q, k, pre, next_, prefixes[s]))
        tokens = [sum(lens) for lens in lengths]
        np.testing.assert_array_equal(
            block_diagonal(by_bands, *tokens), block_diagonal(by_mode, *tokens), err_msg=f"{pre}, {next_}"
        )
