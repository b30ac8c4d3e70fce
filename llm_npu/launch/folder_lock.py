"""Prevents two runs from writing to one output folder with a lock on ``<output_dir>/run.lock``.

    hold(folder)                on rank 0, until this process exits; UserError if another run holds the lock
    refuse_if_taken(folder)     the same check without acquiring the lock
    check(folder)               before publishing a checkpoint: the lock must still belong to this run

It is a POSIX record lock: the kernel releases it whenever the process exits, children do not inherit it, and
NFSv4 supports it between machines. An NFS server drops the lock of a machine that is unreachable for some 90
seconds, and another run may then acquire it; therefore the file also records its owner:

    {"host": "node7", "process": 4711, "started": "2026-03-01 12:00:00 UTC"}

Importing this module imports no framework.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from llm_npu.core.console import say
from llm_npu.core.errors import UserError, naming
from llm_npu.launch import own_file
from paddle_fused import strict_json

NAME = "run.lock"
_LONGEST = 4096  # bytes
# {folder: (descriptor, content of the file)}. Closing another descriptor would release the lock.
_held: dict[Path, tuple[int, bytes]] = {}


def hold(folder: Path) -> None:
    """Acquire the lock of ``folder``, which is created if necessary.

    Raises UserError if another run holds it, or if ``run.lock`` is not a regular file; OSError from the file
    system.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / NAME
    descriptor = own_file.open_for(file, os.O_RDWR)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        taken = _refusal(folder, os.pread(descriptor, _LONGEST, 0), error)
        os.close(descriptor)
        if taken is None:
            say(
                f"note     {folder} does not support locks ({error.strerror}); do not start another run in it"
            )
            return
        raise taken from None
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    about = {"host": socket.gethostname(), "process": os.getpid(), "started": started}
    content = strict_json.dumps(about).encode()
    with naming(file):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)
        os.fsync(descriptor)
    _held[folder.resolve()] = descriptor, content


def refuse_if_taken(folder: Path) -> None:
    """Raise UserError if a run holds the lock of ``folder``."""
    file = folder / NAME
    own_file.check(file)
    if not file.exists() or folder.resolve() in _held:
        return
    with file.open("r+b") as handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if taken := _refusal(folder, handle.read(_LONGEST), error):
                raise taken from None


def check(folder: Path) -> None:
    """Raise UserError if this process held the lock of ``folder`` and another run now holds it."""
    key = folder.resolve()
    if key not in _held:
        return
    descriptor, content = _held[key]
    file = folder / NAME
    try:
        same = os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:  # the file was removed
        del _held[key]
        os.close(descriptor)
        return hold(folder)
    own_file.check(file)
    now = os.pread(descriptor, _LONGEST, 0) if same else file.read_bytes()[:_LONGEST]
    if now != content:
        raise UserError(
            f"{folder} now belongs to another run ({_owner(now)}), so this run can no longer write there"
        )


def _refusal(folder: Path, content: bytes, error: OSError) -> UserError | None:
    """The error for a failed lock; None if the file system does not support locks."""
    if error.errno not in (errno.EACCES, errno.EAGAIN):
        return None
    return UserError(
        f"{folder} is in use by another run ({_owner(content)}); wait until it ends, "
        "or use another --output_dir"
    )


def _owner(content: bytes) -> str:
    try:
        about = json.loads(content)
        return f"process {about['process']} on {about['host']}, started {about['started']}"
    except (ValueError, KeyError, TypeError):  # it has just acquired the lock
        return "owner not recorded yet"
