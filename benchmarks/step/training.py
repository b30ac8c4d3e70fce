"""Common parts of all contenders: the optimizer's settings, and the requests of their processes."""

from __future__ import annotations

import resource
import time
from typing import NamedTuple


class AdamWSettings(NamedTuple):
    """AdamW on all weights, gradients clipped by their global norm."""

    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    epsilon: float = 1e-8


class Training:
    """Answers ``losses`` (of several steps) and ``time`` (seconds and page faults of one step)."""

    def step(self) -> float:
        """Run one step and wait for it; return the loss before the step."""
        raise NotImplementedError

    def losses(self, steps: int) -> list[float]:
        return [self.step() for _ in range(steps)]

    def time(self) -> dict[str, float]:
        faults, began = _faults(), time.perf_counter()
        self.step()
        return {"seconds": time.perf_counter() - began, "faults": _faults() - faults}


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
