"""A contender's process: reads requests from stdin, one JSON object in a line, and answers each with one.

    python -m benchmarks.worker paddle '{"device": "cpu", "contender": "fused", "threads": 2}'

Requests: ``{"do": "prepare", "operator": ..., "sizes": ..., "dtype": ..., "backward": ...}`` makes the
tensors; ``verify`` runs once on them and saves the samples of outputs and gradients; ``time`` runs ``calls``
times on the same tensors; ``memory`` says how much one run needs beside inputs and results; ``release`` drops
all tensors. With ``"slot": name`` several pieces of work are prepared side by side. An answer is
``{"ok": ...}``, ``{"unavailable": reason}`` or ``{"error": message}``.
"""

import ctypes
import gc
import json
import os
import re
import sys
import time
import traceback
from pathlib import Path

import numpy as np

from benchmarks.work import OPERATORS, Unavailable, filled


class Worker:
    """What the requests do. ``framework`` makes tensors of arrays, and functions of work."""

    def __init__(self, framework):
        self.framework, self.version = framework, framework.version
        self.prepared = {}

    def prepare(self, operator, sizes, dtype, backward, slot=""):
        work = OPERATORS[operator](**sizes)
        self.prepared[slot] = work, self.framework.prepare(work, filled(work, dtype), dtype, backward)

    def verify(self, file, slot=""):
        work, run = self.prepared[slot]
        found = run()
        self.framework.wait()
        np.savez(file, **{name: self.framework.sample(work, name, value) for name, value in found.items()})

    def time(self, calls, slot=""):
        """Seconds of one call."""
        _, run = self.prepared[slot]
        began = time.perf_counter()
        for _ in range(calls):
            run()
        self.framework.wait()
        return (time.perf_counter() - began) / calls

    def memory(self, slot=""):
        """Peak of the resident memory during one run - before it - results, in bytes."""
        release_free_memory()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _status("VmRSS")
        results = self.prepared[slot][1]()
        self.framework.wait()
        return _status("VmHWM") - before - sum(map(self.framework.nbytes, results.values()))

    def release(self):
        self.prepared.clear()
        gc.collect()
        release_free_memory()


def release_free_memory():
    """Gives what the C library keeps of freed memory back to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)[1]) * 1024


def framework_of(name: str, settings: dict):
    if name == "paddle":
        from benchmarks.paddle_worker import PaddleWorker

        return PaddleWorker(**settings)
    from benchmarks.torch_worker import TorchWorker

    return TorchWorker(**settings)


def serve(make):
    """Answers the requests on stdin by the methods of the worker that ``make`` returns, until stdin ends."""
    # What libraries print to stdout must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        worker = make()
        answer = {"ok": worker.version}
    except Unavailable as reason:
        answer = {"unavailable": str(reason)}
    print(json.dumps(answer), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(worker, request.pop("do"))(**request)}
        except Unavailable as reason:
            answer = {"unavailable": str(reason)}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error).strip() or 'no message'}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    _name, _settings = sys.argv[1:]
    serve(lambda: Worker(framework_of(_name, json.loads(_settings))))
