"""Run a program with a time limit and kill all its descendants.

A process that hangs in a device driver handles no signals, and its ranks run in separate sessions. Therefore
all descendants are killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

POLL = 0.2  # seconds
KILL_TIMEOUT = 20.0  # seconds before a process that cannot be killed is abandoned
_LIBC, _PR_SET_CHILD_SUBREAPER = ctypes.CDLL(None), 36  # <linux/prctl.h>


def run(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    seconds: float,
    silence: float,
    progress: Callable[[], int],
) -> str:
    """Run ``command``; return a description of the failure, or "" for exit code 0.

    The working directory is the folder of ``log``, so ``python -m`` cannot import packages of the caller's
    folder.

    Args:
        log: the file for the output.
        seconds: time limit of the whole run.
        silence: time limit without a change of ``progress()``; 0 for no limit.
    """
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphaned descendants become children of this process
    before = _descendants(os.getpid())
    start = last_change = time.monotonic()
    state, failure = progress(), ""
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
        while not failure:
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL)
                break
            now = time.monotonic()
            if (current := progress()) != state:
                state, last_change = current, now
            if now - start > seconds:
                failure = f"did not finish within {seconds:.0f} s"
            elif silence and now - last_change > silence:
                failure = f"made no progress for {silence:.0f} s"
    finally:
        _kill_descendants(process, before)
    if process.returncode is None:
        return f"{failure}, and could not be killed: it is blocked in a driver"
    return failure or (process.returncode and ended_by(process.returncode)) or ""


def ended_by(code: int) -> str:
    """Describe an exit code; 128 + n means signal n, as in a shell."""
    number = -code if code < 0 else code - 128 if code > 128 else 0
    with suppress(ValueError):
        if number:
            return f"was killed by {signal.Signals(number).name}"
    return f"exited with code {code}"


def _kill_descendants(process: subprocess.Popen, before: set[int]) -> None:
    """Kill all descendants of this process except those in ``before``, including adopted ones."""
    start = time.monotonic()
    while (pids := _descendants(os.getpid()) - before) and time.monotonic() - start < KILL_TIMEOUT:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids - {process.pid}:
            with suppress(ChildProcessError):  # the child of another process that is still running
                os.waitpid(pid, os.WNOHANG)
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL / 10)
        time.sleep(POLL / 10)
    process.poll()


def _descendants(pid: int) -> set[int]:
    """All descendants, including zombies."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has exited in the meantime
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    descendants, parents = set(), [pid]
    while parents:
        for child in children.get(parents.pop(), ()):
            descendants.add(child)
            parents.append(child)
    return descendants
