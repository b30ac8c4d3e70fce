"""Pointers of git-LFS, which a clone has instead of large files. Importing it imports no framework."""

from __future__ import annotations

from pathlib import Path

from llm_npu.core.errors import UserError

BEGINNING = b"version https://git-lfs.github.com/spec/"


def refuse_pointer(file: str | Path, content: bytes | None = None) -> None:
    """UserError if ``file`` is a pointer; ``content``: its beginning, if that is read already.

    What cannot be read is left to the reader of the file.
    """
    if content is None:
        try:
            with Path(file).open("rb") as stream:
                content = stream.read(len(BEGINNING))
        except OSError:
            return
    if content.startswith(BEGINNING):
        raise UserError(f"{file} is a git-LFS pointer, not the file itself; run git lfs pull in its folder")
