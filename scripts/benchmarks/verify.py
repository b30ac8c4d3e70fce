"""Whether a contender's outputs and gradients are right, before anything is timed."""

from __future__ import annotations

import numpy as np

# The largest relative error (2-norm of the difference / 2-norm of the truth) of what is compared. Sums of
# some thousand products of rounded numbers stay several times below; a formula that lacks a term is far
# above.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1.5e-2}


class Wrong(Exception):
    """A contender computed something else."""


def samples(file) -> dict[str, np.ndarray]:
    """What a contender's process has saved, in float64."""
    with np.load(file) as loaded:
        return {name: loaded[name].astype(np.float64) for name in loaded.files}


def check(who: str, case, arrays: dict, file) -> None:
    """Compares the samples in ``file`` with the golden values; raises Wrong."""
    found = samples(file)
    try:
        truth = case.work.golden(arrays, found, case.backward)
    except ValueError as error:
        raise Wrong(f"{case}: {who}: {error}.") from error
    names = set(case.work.outputs) | {f"d{name}" for name in case.work.variables if case.backward}
    compared = [name for name in found if name in names and truth.get(name) is not None]
    assert set(case.work.outputs) <= set(compared), (names, list(found))
    for name in compared:
        error = np.linalg.norm(found[name] - truth[name]) / max(np.linalg.norm(truth[name]), 1e-30)
        if not error <= TOLERANCE[case.dtype]:  # also true of NaN
            raise Wrong(
                f"{case}: {who} computes {name} with a relative error of {error:.2e}; accepted is "
                f"{TOLERANCE[case.dtype]:g}."
            )
