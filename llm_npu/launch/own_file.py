"""Opens files in a run's output folder, but never through a link, a FIFO or a device.

A link would let the run overwrite a file outside its folder. Importing this module imports no framework.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from llm_npu.core.errors import UserError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check(file: Path, alone: bool = False) -> None:
    """Raise UserError if ``file`` exists and is not a regular file or, with ``alone``, has hard links."""
    if not os.path.lexists(file):
        return
    about = file.lstat()
    if not stat.S_ISREG(about.st_mode):
        raise _refusal(file, _kind(file), "file")
    if alone and about.st_nlink > 1:
        raise _refusal(file, f"a file with {about.st_nlink} names (hard links)", "file")


def check_folder(folder: Path) -> None:
    """Raise UserError if ``folder`` exists and is neither a folder nor a link to one."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise _refusal(folder, _kind(folder), "folder")


def open_for(file: Path, flags: int) -> int:
    """Open ``file``, which is created if missing and must not have hard links; returns the descriptor.

    Raises UserError as `check`, and OSError from the file system.
    """
    check(file, alone=True)
    return os.open(file, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _kind(path: Path) -> str:
    mode = path.lstat().st_mode
    return f"a link to {os.readlink(path)}" if stat.S_ISLNK(mode) else _KINDS[stat.S_IFMT(mode)]


def _refusal(path: Path, kind: str, wanted: str) -> UserError:
    return UserError(
        f"{path} is {kind}, but the run writes a {wanted} of that name; move it away, or use another "
        "--output_dir"
    )
