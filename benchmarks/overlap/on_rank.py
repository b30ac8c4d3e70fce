"""What a benchmark of worker.py does on a rank: it prepares a contender, times it, and returns results."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import paddle
import paddle.distributed as dist


class OnRank:
    """The work of a case on the ranks of ``group``."""

    def seconds(self, name: str) -> float:
        """Seconds of one round: all ranks start together, and synchronize with the device at the end."""
        run = self._prepared(name)
        dist.barrier(self.group)
        paddle.device.synchronize()
        began = time.perf_counter()
        run()
        paddle.device.synchronize()
        return time.perf_counter() - began

    def plan(self) -> None:
        """The planner's choice, if there is one."""
        return None

    def _prepared(self, name: str) -> Callable:
        """The function to time for the contender ``name``."""
        raise NotImplementedError


class OperatorWithTransfers(OnRank):
    """An operator of ``inputs`` that hides its transfers (``transfers``); ``_run`` computes a contender."""

    def results(self, name: str) -> list[np.ndarray]:
        out = self._run(name)
        gradients = [tensor.grad for tensor in self.inputs if tensor.grad is not None]
        return [tensor.astype("float32").numpy() for tensor in (out, *gradients)]

    def _prepared(self, name: str) -> Callable:
        return partial(self._run, name)
