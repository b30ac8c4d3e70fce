"""The contenders and their processes.

Each contender is a separate process. While one contender is timed, the others are stopped (SIGSTOP), so that
their spinning idle threads (for example of OpenMP) use no CPU time and every contender keeps its default
waiting policy. All contenders use the same number of threads.

With the malloc setting, the C library keeps freed memory instead of returning it to the system, which would
have to clear every page again. Page faults of large results are a large part of the cost of a memory-bound
operator. Both sides of a comparison use the same setting.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from . import ROOT

MALLOC_TUNABLES = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776"
PR_SET_PDEATHSIG = 1


class Failed(Exception):
    """A contender's process exited, or an operator raised an error in it."""


@dataclass(frozen=True)
class Contender:
    """A contender.

    Attributes:
        framework: "paddle" or "torch".
        worker: the class that answers requests in the contender's process.
        settings: the arguments of ``worker``, except the threads.
    """

    name: str
    framework: str
    worker: str
    settings: tuple[tuple[str, object], ...]

    @property
    def kind(self) -> str:
        """The contender's kind in Work.memory."""
        return dict(self.settings).get("contender", "torch")


PADDLE = ("paddle", "benchmarks.ops.paddle_worker.PaddleWorker")
TORCH_WORKER = ("torch", "benchmarks.ops.torch_worker.TorchWorker")


def contender(name: str, framework: str, worker: str, **settings) -> Contender:
    return Contender(name, framework, worker, tuple(settings.items()))


CONTENDERS = {
    one_contender.name: one_contender
    for one_contender in (
        contender("fused cpu", *PADDLE, device="cpu", contender="fused"),
        contender("fused npu", *PADDLE, device="npu", contender="fused"),
        contender("torch eager", *TORCH_WORKER, compiled=False),
        contender("torch compile", *TORCH_WORKER, compiled=True),
        contender("composed", *PADDLE, device="cpu", contender="composed"),
        contender("paddle", *PADDLE, device="cpu", contender="paddle"),
    )
}
FUSED = ("fused cpu", "fused npu")
TORCH = ("torch eager", "torch compile")


class Process:
    """A contender's process, stopped except during a request."""

    def __init__(self, contender: Contender, threads: int, malloc: str, torch_python: str):
        self.contender = contender
        settings = json.dumps({**dict(contender.settings), "threads": threads})
        python = torch_python if contender.framework == "torch" else sys.executable
        self._command = [python, "-m", "benchmarks.worker", contender.worker, settings]
        self._environment = environment(contender.framework, threads, malloc)
        self.unavailable: str | None = None
        self.version = ""
        self._start()

    def _start(self):
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `end`)
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            preexec_fn=_end_with_parent,
        )

    def started(self) -> None:
        """Waits until the process is ready."""
        answer = self._answer()
        self.unavailable, self.version = answer.get("unavailable"), answer.get("ok", "")
        self._process.send_signal(signal.SIGSTOP)

    def ask(self, do: str, timeout: float | None = None, **request) -> dict:
        """Return the answer: {"ok": value} or {"unavailable": reason}. Raises Failed if the contender failed.

        Without an answer within ``timeout`` seconds, the process is restarted and the answer is a timeout.
        """
        if self.unavailable:
            return {"unavailable": self.unavailable}
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # the process exited; reading the answer reports it
            print(json.dumps({"do": do, **request}), file=self._process.stdin, flush=True)
        answer = self._answer(timeout)
        if answer is None:
            self.end()
            self._start()
            self.started()
            return {"unavailable": f"more than {timeout:g} s"}
        self._process.send_signal(signal.SIGSTOP)
        if "error" in answer:
            raise Failed(f"{self.contender.name}: {answer['error']}")
        return answer

    def _answer(self, timeout: float | None = None) -> dict | None:
        """The process's answer, or None after ``timeout`` seconds."""
        began = time.monotonic()
        wait = 0.5 if timeout is None else min(0.5, timeout)
        while not select.select([self._process.stdout], [], [], wait)[0]:
            if timeout is not None and time.monotonic() - began > timeout:
                return None
            self._process.send_signal(signal.SIGCONT)  # in case the process is stopped
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        status = self._process.wait()
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        self._errors.seek(0)
        last_lines = " | ".join(self._errors.read().strip().splitlines()[-3:])
        raise Failed(f"{self.contender.name}: the process ended {how}: {last_lines or 'no output'}")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


class Processes:
    """The processes of the selected contenders of ``table``, by name, started together."""

    def __init__(
        self,
        names: Iterable[str],
        threads: int,
        malloc: str,
        torch_python: str,
        table: Mapping[str, Contender] = CONTENDERS,
    ):
        self.by_name = {name: Process(table[name], threads, malloc, torch_python) for name in names}

    def __enter__(self) -> dict[str, Process]:
        try:
            for process in self.by_name.values():
                process.started()
        except BaseException:
            self.__exit__()
            raise
        return self.by_name

    def __exit__(self, *_error) -> None:
        for process in self.by_name.values():
            process.end()


def environment(framework: str, threads: int, malloc: str) -> dict[str, str]:
    """The environment of a contender: threads, the malloc setting, and the module path."""
    # Torch may run in another Python.
    inherited = os.environ.get("PYTHONPATH", "") if framework == "paddle" else ""
    return {
        **os.environ,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), inherited])),
        "GLIBC_TUNABLES": MALLOC_TUNABLES if malloc == "on" else "",
        "PADDLE_FUSED_MALLOC": "system",  # one setting for all
        "VIRTUAL_NPU_QUIET": "1",
        "VIRTUAL_NPU_DEVICES": "1",
        "GLOG_minloglevel": "2",
    }


def _end_with_parent() -> None:
    # A stopped process would outlive a killed script.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
