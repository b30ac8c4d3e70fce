"""Runs a program with a time limit; every outcome is a result, and no process is left behind.

A process that hangs in a device's driver cannot handle any signal, and its ranks are in sessions of their
own: all its descendants are killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOOK = 0.2  # seconds between two polls
UNKILLABLE = 20.0
_LIBC, _PR_SET_CHILD_SUBREAPER = ctypes.CDLL(None), 36  # <linux/prctl.h>


@dataclass(frozen=True)
class End:
    """``how`` it ended, "" for exit code 0; ``is_hung``: it was killed at its time limit."""

    how: str
    is_hung: bool
    seconds: float


def run(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    seconds: float,
    silence: float,
    progress: Callable[[], int],
) -> End:
    """Waits for ``command``, at most ``seconds`` and, unless ``silence`` is 0, while ``progress()`` changes
    every ``silence`` seconds.

    It runs in the folder of ``log``, which gets its output: there ``python -m`` cannot pick up a package from
    the caller's folder.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphaned descendants become children of this process
    before = _descendants(os.getpid())
    began = heard = time.monotonic()
    said, late = progress(), ""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=dict(environment),
            cwd=log.parent,
        )
    try:
        while not late:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK)
                break
            now = time.monotonic()
            if (says := progress()) != said:
                said, heard = says, now
            if now - began > seconds:
                late = f"did not end within {seconds:.0f} s"
            elif silence and now - heard > silence:
                late = f"made no progress for {silence:.0f} s"
    finally:
        _end(process, before)
    if process.returncode is None:
        late += ", not even when it was killed: a driver blocks it"
    how = late or ("" if process.returncode == 0 else ended_by(process.returncode))
    return End(how, bool(late), time.monotonic() - began)


def ended_by(code: int) -> str:
    """Describes an exit code; 128 + n is signal n, as in a shell."""
    number = -code if code < 0 else code - 128 if code > 128 else 0
    with suppress(ValueError):
        if number:
            return f"was ended by {signal.Signals(number).name}"
    return f"ended with exit code {code}"


def _end(process: subprocess.Popen, before: set[int]) -> None:
    """Kills the descendants of ``process``, including those that this process has adopted since.

    A process blocked inside a driver cannot be killed: it is abandoned after ``UNKILLABLE`` seconds.
    """
    began = time.monotonic()
    while (doomed := _descendants(os.getpid()) - before) and time.monotonic() - began < UNKILLABLE:
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in doomed - {process.pid}:
            with suppress(ChildProcessError):  # the child of another process, until that one has ended
                os.waitpid(pid, os.WNOHANG)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK / 10)
        time.sleep(LOOK / 10)
    process.poll()


def _descendants(pid: int) -> set[int]:
    """All descendants, including zombies."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended in the meantime
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = set(), [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            found.add(child)
            waiting.append(child)
    return found
