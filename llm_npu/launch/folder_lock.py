"""Two runs never write one output folder: rank 0 holds a lock on ``<output_dir>/run.lock``.

    hold(folder)                from now on, until this process ends; UserError if another run has it
    refuse_if_taken(folder)     the same refusal, without the lock
    check(folder)               before a checkpoint appears: the lock must still be this run's

It is a POSIX record lock: the kernel releases it when the process ends in any way, children do not inherit
it, and NFSv4 keeps it between machines. The server of NFS gives up the lock of a machine that it cannot reach
for some 90 seconds, and another run may take it then; so the file also says whose it is:

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
# {folder: (descriptor, content of the file)}. To close any other descriptor of the file would end the lock.
_held: dict[Path, tuple[int, bytes]] = {}


def hold(folder: Path) -> None:
    """Take the lock of ``folder``, which is made.

    UserError if another run has it, or if ``run.lock`` is not a file of its own; OSError as of files.
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
            say(f"note     {folder} has no locks ({error.strerror}): nothing keeps another run out of it")
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
    """UserError if a run holds the lock of ``folder``."""
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
    """UserError if this process held the lock of ``folder`` and another run has it now."""
    key = folder.resolve()
    if key not in _held:
        return
    descriptor, content = _held[key]
    file = folder / NAME
    try:
        same = os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:  # somebody has tidied up
        del _held[key]
        os.close(descriptor)
        return hold(folder)
    own_file.check(file)
    now = os.pread(descriptor, _LONGEST, 0) if same else file.read_bytes()[:_LONGEST]
    if now != content:
        raise UserError(
            f"{folder} now belongs to another run ({_owner(now)}), so this one may not write there any more."
        )


def _refusal(folder: Path, content: bytes, error: OSError) -> UserError | None:
    """The refusal that the failed lock means; None where the file system has no locks."""
    if error.errno not in (errno.EACCES, errno.EAGAIN):
        return None
    return UserError(
        f"{folder} is in use by another run ({_owner(content)}); wait for its end, "
        "or give another --output_dir."
    )


def _owner(content: bytes) -> str:
    try:
        about = json.loads(content)
        return f"process {about['process']} on {about['host']}, started {about['started']}"
    except (ValueError, KeyError, TypeError):  # it has just taken the lock
        return "it has not written its name yet"
