"""How far apart two runs may be that train the same and differ in the order of their sums.

The noise floor is measured, as for operators (tests/shared/precision.py): runs of one process without fused
operators, whose roundings are others, too. A run may be at most twice as far from the fused run of one
process as the furthest of them is, plus 4 roundings of the largest value. One of them is often as far as
nothing by luck: the others have the results of their layers off by a unit in the last place at random.

Such a rule can hold only where roundings stay roundings; ``ADAM_EPSILON`` is for that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paddle_fused.parity import ROUNDING

# With Adam's default epsilon of 1e-8 no rule for roundings could hold: the first step moves a weight by
# lr g / (|g| + epsilon), which enlarges an error of its gradient g by up to lr / epsilon. Gradients of a
# matrix are about 1e-3 in the tests' models, and the roundings of their sums leave errors of 1e-9. A weight
# whose gradient happens to be no larger than 1e-8 moves by percents of lr more or less, and alone decides how
# far two runs are apart from then on.
ADAM_EPSILON = 1e-4


def assert_trained_alike(
    what: str,
    here: Sequence[float],
    there: Sequence[float],
    unfused: Sequence[Sequence[float]],
    rounding: float = ROUNDING["float32"],
) -> None:
    """The rule for one quantity of every step: ``here`` of the run in question, ``there`` of the fused run of
    one process, ``unfused`` of its runs without fused operators. ``rounding`` is relative."""
    here, there = (np.asarray(values, np.float64) for values in (here, there))
    others = np.asarray(unfused, np.float64)
    assert here.shape == there.shape == others.shape[1:], (what, here, there, others)
    bound = 2 * np.abs(others - there).max() + 4 * rounding * np.abs(there).max()
    apart = np.abs(here - there).max()
    assert apart <= bound, f"{what}: {apart:.3e} apart, allowed {bound:.3e}: {here} and {there}"
