"""Fits efficiencies to measured runs, within priors from theory and single kernels.

Least squares of r(log(predicted / measured) / NOISE) over the runs and of log(parameter / prior) / width over
the parameters, by Gauss-Newton steps. r(x)^2 = 2 (sqrt(1 + x^2) - 1) grows as x^2 near 0 and as |x| beyond,
so that an unexplained run does not dominate the others. There are only eight parameters; everything else is
counted or published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .programs.program import ProgramEfficiencies

# The prior of a parameter, and the width of its logarithm.
# - cube: 0.93 in a loop of one matmul (roofline.py), less in a program with uncached operands on a warm card.
# - attention: two matmuls at half speed, because the vector unit computes their softmax meanwhile.
# - hidden: for a chunked collective next to a matmul, all but the first chunk or half of it.
# - memory, links: small kernels, and ranks that wait for each other, are slower than a loop of one large
# kernel. - gather: an index of 8 bytes and a 2-byte read of a partial line; little is known.
# - earlier, later: nothing is known.
PRIORS = {
    "cube": (0.8, 0.15),
    "attention": (0.45, 0.3),
    "hidden": (0.6, 0.5),
    "memory": (0.9, 0.2),
    "links": (0.9, 0.3),
    "gather": (0.4, 0.7),
    "earlier": (1.0, 0.1),
    "later": (1.0, 0.1),
}
NOISE = 0.08  # the README lists one run both as LLaMA2 34B and as CodeLlama 34B, 11 % apart
STEPS, DIFFERENCE = 12, 1e-4
BOUNDS = (0.02, 1.5)

Predict = Callable[[ProgramEfficiencies], Sequence[float]]


def fit(
    predict: Predict, measured: Sequence[float], start: ProgramEfficiencies | None = None
) -> ProgramEfficiencies:
    """The efficiencies for which ``predict`` is closest to ``measured``, both in tokens/s.

    ``start``: efficiencies near the result, which reduce the number of steps.
    """
    names = tuple(PRIORS)
    priors = np.log([PRIORS[name][0] for name in names])
    widths = np.array([PRIORS[name][1] for name in names])
    target = np.log(np.asarray(measured, float))
    low, high = np.log(BOUNDS)

    def efficiencies(logs: np.ndarray) -> ProgramEfficiencies:
        values = np.exp(logs)
        return ProgramEfficiencies(**dict(zip(names, map(float, values), strict=True)))

    def residuals(logs: np.ndarray) -> np.ndarray:
        errors = (np.log(np.asarray(predict(efficiencies(logs)), float)) - target) / NOISE
        bounded = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([bounded, (logs - priors) / widths])

    logs = np.log([getattr(start, name) for name in names]) if start else priors.copy()
    for _ in range(2 if start else STEPS):
        now = residuals(logs)
        slopes = np.column_stack(
            [(residuals(logs + DIFFERENCE * unit) - now) / DIFFERENCE for unit in np.eye(len(names))]
        )
        logs = np.clip(logs - np.linalg.lstsq(slopes, now, rcond=None)[0], low, high)
    rounded = efficiencies(logs)
    return replace(rounded, **{name: round(getattr(rounded, name), 4) for name in names})
