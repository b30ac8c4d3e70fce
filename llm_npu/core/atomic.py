"""Atomic writes: output is complete or absent, even if the writing process is killed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from llm_npu.core.errors import naming

# <linux/fs.h>, <fcntl.h>
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100


@contextlib.contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """Yield a hidden folder next to ``target`` to write into. Anything left in it at the end is removed.

    The folder is locked while it is in use. The kernel releases the lock when the process dies, so this
    function can detect and remove leftovers of killed processes for the same target. Raises OSError if the
    parent folder is not writable.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target.parent, target.name)
    with contextlib.ExitStack() as stack:
        folder = _new_folder(target.parent, _prefix(target.name), stack)
        try:
            yield folder
        finally:
            with contextlib.suppress(OSError):
                delete(folder)


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield a hidden file next to ``target`` to write; it is renamed to ``target`` at the end.

    Other hard links to ``target``, and the target of a symlink, keep their content. Raises OSError, and
    leaves no hidden file, if the file cannot be written or ``target`` is a folder.
    """
    hidden = target.with_name(f"{_prefix(target.name)}file")
    hidden.unlink(missing_ok=True)  # left by a killed process
    try:
        yield hidden
        flush(hidden)
        hidden.replace(target)
    finally:
        hidden.unlink(missing_ok=True)


def remove_leftovers(parent: Path, name: str) -> None:
    """Remove leftovers of killed processes in ``parent`` for targets that match the pattern ``name``."""
    for leftover in parent.glob(f"{_prefix(name)}*"):
        # OSError: in use, or just removed by another process
        with contextlib.suppress(OSError):
            if not _is_folder(leftover):
                leftover.unlink()
                continue
            with _locked(leftover):
                shutil.rmtree(leftover)


def publish(folder: Path, target: Path) -> None:
    """Rename the finished ``folder`` to ``target``; if another process was first, keep its folder."""
    try:
        folder.rename(target)
    except OSError:
        if not target.is_dir():
            raise


def exchange(first: Path, second: Path) -> None:
    """Swap the names of two existing folders atomically; both names exist at all times.

    Raises OSError on file systems without renameat2's RENAME_EXCHANGE, such as NFS.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first), None, str(second))


def replace(folder: Path, target: Path) -> None:
    """Flush the finished ``folder`` of ``unfinished(target)`` to the disk and rename it to ``target``.

    An existing ``target`` is replaced; if it is a symlink, only the link is replaced. After a kill,
    ``target`` is either the old or the new folder. On file systems without ``exchange``, a kill between the
    two renames leaves ``target`` missing.
    """
    flush_all(folder)
    if not os.path.lexists(target):
        folder.rename(target)
    elif not _exchanged(folder, target):  # if exchanged, ``unfinished`` removes the old folder
        old = _hidden(target)
        target.rename(old)
        folder.rename(target)
        delete(old)
    flush(target.parent)


def _exchanged(first: Path, second: Path) -> bool:
    """Call ``exchange``; return False if the file system does not support it."""
    try:
        exchange(first, second)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            return False
        raise
    return True


def flush_all(folder: Path) -> None:
    """Flush everything in ``folder`` to disk."""
    for path in (*folder.rglob("*"), folder):
        flush(path)


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's directory entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Remove ``folder`` atomically; if it is a symlink, remove only the link."""
    doomed = _hidden(folder)
    folder.rename(doomed)
    delete(doomed)


def delete(path: Path) -> None:
    """Delete a folder with its content, a file or a symlink; do nothing if the path does not exist."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder and not a symlink to one."""
    return path.is_dir() and not path.is_symlink()


def _hidden(path: Path) -> Path:
    """An unused name next to ``path`` that ``remove_leftovers`` recognizes."""
    return path.with_name(f"{_prefix(path.name)}{secrets.token_hex(8)}")


def _prefix(name: str) -> str:
    return f".{name}.unfinished-"


def _new_folder(parent: Path, prefix: str, stack: contextlib.ExitStack) -> Path:
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(8)}"
        folder.mkdir()
        # Before the lock is taken, another process may mistake the folder for a leftover.
        with contextlib.suppress(OSError):
            stack.enter_context(_locked(folder))
            if folder.is_dir():
                return folder


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``; BlockingIOError when another process holds it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
