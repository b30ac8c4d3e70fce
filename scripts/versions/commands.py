"""Runs commands with a time limit: their output is kept in a file, and no child process is left running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from upstream_tests.execution import end_session

POLL = 2  # seconds between two polls of a watched file


class Ended(NamedTuple):
    """A command's result: its exit code, None after its time limit, and its output."""

    code: int | None
    text: str

    @property
    def last_line(self) -> str:
        """The last line that is not empty."""
        return next((line.strip() for line in reversed(self.text.splitlines()) if line.strip()), "")

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.code is None:
            return "its time was over"
        return f"killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"


def run(
    command: Sequence[str],
    log: Path,
    limit: float,
    folder: Path | None = None,
    watched: Path | None = None,
    **variables: str,
) -> Ended:
    """Runs ``command`` in ``folder``; ``log`` gets what it prints.

    It may run for ``limit`` seconds: in total, or without a change of the file ``watched``. Its child
    processes end with it. The caller's PYTHONPATH and virtual NPU settings are not passed on.
    """
    apart = {
        name: text
        for name, text in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith("VIRTUAL_NPU_")
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as sink:
        sink.write(f"{' '.join(command)}\n")
        sink.flush()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**apart, "PYTHONNOUSERSITE": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = _wait(process, limit, watched)
        finally:
            end_session(process.pid)
            process.wait()
    return Ended(code, log.read_text(errors="replace").partition("\n")[2])


def _wait(process: subprocess.Popen, limit: float, watched: Path | None) -> int | None:
    end, seen = time.monotonic() + limit, -1
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, POLL) if watched else left)
        if watched and watched.is_file() and (size := watched.stat().st_size) != seen:
            end, seen = time.monotonic() + limit, size
    return None
