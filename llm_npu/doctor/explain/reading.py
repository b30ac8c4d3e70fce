"""Reads the lines of a log of any size and content in bounded memory.

Blocks that cannot contain a failure (most of a training log) are skipped.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from llm_npu.core.errors import UserError

BLOCK = 1 << 20  # bytes per read, and maximum line length
PIECE = 8192  # characters searched at once
OVERLAP = 512  # overlap of two pieces of a longer line
_GZIP = b"\x1f\x8b"
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def as_utf8(log: BinaryIO) -> BinaryIO:
    """``log`` as UTF-8; PowerShell's ``>`` writes UTF-16. Raises UserError for a compressed log."""
    begin = log.peek(2)[:2]
    if begin == _GZIP:
        raise UserError("the log is compressed; pipe the output of gzip -dc to --explain -")
    if begin in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return codecs.EncodedFile(log, "utf-8", "utf-16", errors="replace")
    return log


def pieces(log: BinaryIO, matters: Callable[[bytes], bool]) -> Iterator[tuple[int, str]]:
    """(line number, text) of the lines in relevant blocks. A long line yields several pieces.

    A line with escaped line breaks ("\\n") yields several lines with the same number.
    """
    number, rest = 1, b""
    while True:
        read = log.read(BLOCK)
        block = rest + read
        end = block.rfind(b"\n") + 1
        if read and not end and len(block) < BLOCK:
            rest = block
            continue
        if not read or not end:
            end = len(block)
        whole, rest = block[:end], block[end:]
        if matters(whole):
            for offset, line in enumerate(whole.split(b"\n")):
                for piece in _parts(line):
                    yield number + offset, piece
        number += whole.count(b"\n")
        if not read:
            return


def _parts(line: bytes) -> Iterator[str]:
    if not line.strip():
        return
    decoded = _COLOURS.sub("", line.decode("utf-8", errors="replace"))
    for part in re.split(r"\\n|\r", decoded):
        for start in range(0, max(1, len(part)), PIECE - OVERLAP):
            yield part[start : start + PIECE]
            if start + PIECE >= len(part):
                break
