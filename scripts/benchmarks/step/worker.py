"""A contender's process: ``python -m benchmarks.step.worker paddle '{"model": "fused", ...}'``.

Requests, see ``benchmarks.worker``: ``losses`` makes some steps and returns their losses; ``time`` makes one
and returns its seconds and its page faults.
"""

import json
import resource
import sys
import time

from benchmarks.worker import serve


class StepWorker:
    def __init__(self, llama):
        self.llama, self.version = llama, llama.version

    def losses(self, steps):
        return [self.llama.step() for _ in range(steps)]

    def time(self):
        faults = _faults()
        began = time.perf_counter()
        self.llama.step()
        return {"seconds": time.perf_counter() - began, "faults": _faults() - faults}


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def llama_of(framework: str, settings: dict):
    if framework == "paddle":
        from benchmarks.step.paddle_llama import PaddleLlama

        return PaddleLlama(**settings)
    from benchmarks.step.torch_llama import TorchLlama

    return TorchLlama(**settings)


if __name__ == "__main__":
    _framework, _settings = sys.argv[1:]
    serve(lambda: StepWorker(llama_of(_framework, json.loads(_settings))))
