"""Gathers the facts that need paddle in a separate process, whose crash or hang is also a result.

Paddle loads device plugins on import. An incompatible plugin kills the process with a signal, or hangs.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MARK = "@doctor "  # prefix of the process's messages, because paddle prints other lines
# The stages in order, by the process's names for them.
PADDLE, DEVICE, OPERATORS, HOST_OPERATORS, LIBRARY = STAGES = (
    "import paddle",
    "a matmul on the device",
    "the plugin's operators",
    "the host operators",
    "import the model library",
)
SHOWN = 300  # characters of an error
REASONS = re.compile(r"error|fatal|assert|terminate", re.IGNORECASE)


@dataclass(frozen=True)
class Probe:
    """The result of the process.

    Attributes:
        facts: collected by the stages.
        failed: the error of each failed stage.
        during: the stage in which the process ended.
        ended: how the process ended; empty if it finished.
    """

    facts: Mapping[str, object] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    during: str = ""
    ended: str = ""

    def passed(self, stage: str) -> bool:
        """Whether the stage was reached and succeeded; False for all stages without paddle."""
        if stage in self.failed or PADDLE in self.failed:
            return False
        return not self.ended or STAGES.index(stage) < STAGES.index(self.during)


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs ``module`` in the same interpreter with the same options (-S, -W, ...)."""
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-m", module, *arguments]


def run_probe(environ: Mapping[str, str], timeout: float, stages: Sequence[str] = STAGES) -> Probe:
    """Run ``stages`` in a new process with the environment ``environ``, for at most ``timeout`` seconds."""
    command = python("llm_npu.doctor.probe_program", *stages)
    try:
        done = subprocess.run(command, env=dict(environ), capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired as late:
        return _read(late.stdout or b"", f"did not end within {timeout:g} s")
    if done.returncode == 0:
        return _read(done.stdout, "")
    return _read(done.stdout, _how_it_ended(done.returncode) + _last_error(done.stderr))


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended the process with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


def _last_error(stderr: bytes) -> str:
    """The text of a C++ exception, else the last line that looks like an error; "" without either."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    thrown = [line.partition("what():")[2].strip() for line in lines if "what():" in line]
    errors = [line for line in lines if REASONS.search(line)]  # skips paddle's warnings
    words = (thrown or errors or [""])[-1]
    return f": {words[:SHOWN]}" if words else ""


def _read(stdout: bytes, ended: str) -> Probe:
    facts: dict[str, object] = {}
    failed: dict[str, str] = {}
    during = STAGES[0]
    for line in stdout.decode(errors="replace").splitlines():
        if not line.startswith(MARK):
            continue
        message = json.loads(line.removeprefix(MARK))
        during = message.get("begins", during)
        facts.update(message.get("facts", {}))
        failed.update(message.get("failed", {}))
    return Probe(facts, failed, during if ended else "", ended)
