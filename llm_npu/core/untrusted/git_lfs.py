"""git-LFS pointers, which a clone has in place of large files. Importing this module imports no framework."""

from __future__ import annotations

from pathlib import Path

from llm_npu.core.errors import UserError

BEGINNING = b"version https://git-lfs.github.com/spec/"


def refuse_pointer(file: str | Path, content: bytes | None = None) -> None:
    """Raise UserError if ``file`` is a pointer; ``content`` is its beginning, if already read.

    Errors of an unreadable file are left to the file's reader.
    """
    if content is None:
        try:
            with Path(file).open("rb") as stream:
                content = stream.read(len(BEGINNING))
        except OSError:
            return
    if content.startswith(BEGINNING):
        raise UserError(f"{file} is a git-LFS pointer, not the file itself; run git lfs pull in its folder")
