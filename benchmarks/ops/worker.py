"""A contender's process that runs operators, for any framework."""

from __future__ import annotations

import ctypes
import gc
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.work import OPERATORS, Work, filled


class OperatorWorker:
    """Runs operators in a contender's process.

    Requests: ``prepare`` creates the tensors; ``verify`` runs once and saves samples of outputs and
    gradients;
    ``time`` measures ``calls`` runs; ``memory`` measures the memory of a run without inputs and results;
    ``release`` drops all tensors. Several cases can be prepared at once, by ``slot``.

    A subclass implements the creation of tensors and functions.
    """

    def __init__(self, version: str):
        self.version = version
        self.prepared = {}

    def function(self, work: Work, arrays: dict, dtype: str, backward: bool) -> Callable[[], dict]:
        """The timed function, which returns outputs and gradients by name. Empties ``arrays``."""
        raise NotImplementedError

    def sample(self, work: Work, name: str, tensor) -> np.ndarray:
        """The compared part of the output or gradient ``name``."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait until all started work has finished."""

    def prepare(self, operator, sizes, dtype, backward, slot=""):
        work = OPERATORS[operator](**sizes)
        self.prepared[slot] = work, self.function(work, filled(work, dtype), dtype, backward)

    def verify(self, file, slot=""):
        work, run = self.prepared[slot]
        results = run()
        self.wait()
        np.savez(file, **{name: self.sample(work, name, value) for name, value in results.items()})

    def time(self, calls, slot=""):
        """Seconds of one call."""
        _, run = self.prepared[slot]
        began = time.perf_counter()
        for _ in range(calls):
            run()
        self.wait()
        return (time.perf_counter() - began) / calls

    def memory(self, slot=""):
        """Peak resident memory during a run, minus the memory before it and the results, in bytes."""
        release_free_memory()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _status("VmRSS")
        results = self.prepared[slot][1]()
        self.wait()
        return _status("VmHWM") - before - sum(map(_size, results.values()))

    def release(self):
        self.prepared.clear()
        gc.collect()
        release_free_memory()


def release_free_memory():
    """Return freed memory that the C library keeps to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def _size(tensor) -> int:
    return int(tensor.numel()) * tensor.element_size()


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)[1]) * 1024
