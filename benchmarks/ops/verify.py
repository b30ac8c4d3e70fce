"""Verifies a contender's outputs and gradients before anything is timed."""

from __future__ import annotations

import numpy as np

from benchmarks.contenders import FUSED
from benchmarks.contest import Wrong
from benchmarks.work import filled

# Maximum relative error (2-norm of the difference / 2-norm of the golden value). Sums of several thousand
# products of rounded numbers are several times below; a formula with a missing term is far above.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1.5e-2}
# Torch may be less accurate: torch 2.13 sums bias gradients in bfloat16 (5e-2 over 2048 rows). Its results
# are only compared to check that it does the same work.
PEERS_MAY = 10


def samples(file) -> dict[str, np.ndarray]:
    """The results that a contender's process has saved, in float64."""
    with np.load(file) as loaded:
        return {name: loaded[name].astype(np.float64) for name in loaded.files}


class Golden:
    """The golden values of a case, computed once unless they depend on a contender's random numbers."""

    def __init__(self, case):
        self.case = case
        self._arrays = filled(case.work, case.dtype)
        self._truth = None

    def check(self, who: str, file) -> None:
        """Compare the samples in ``file`` with the golden values; raise Wrong if they differ."""
        case, outputs = self.case, samples(file)
        try:
            if self._truth is None or case.work.is_random:
                self._truth = case.work.golden(self._arrays, outputs, case.backward)
        except ValueError as error:
            raise Wrong(f"{case}: {who}: {error}.") from error
        compared = [name for name in outputs if self._truth.get(name) is not None]
        assert set(case.work.outputs) <= set(compared), list(outputs)
        for name in compared:
            truth = self._truth[name]
            error = np.linalg.norm(outputs[name] - truth) / max(np.linalg.norm(truth), 1e-30)
            accepted = TOLERANCE[case.dtype] * (1 if who in FUSED else PEERS_MAY)
            if not error <= accepted:  # also true for NaN
                raise Wrong(
                    f"{case}: {who} computes {name} with a relative error of {error:.2e}; accepted: at most "
                    f"{accepted:g}."
                )
