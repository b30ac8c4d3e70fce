"""The lines of a log, of any size and with any content, in little memory.

Blocks without anything that could belong to a failure are passed over, which most of a training's log is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

BLOCK = 1 << 20  # bytes that are read at once, and the longest line
PIECE = 8192  # characters that are looked at together
OVERLAP = 512  # of two pieces of a longer line
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def pieces(log: BinaryIO, matters: Callable[[bytes], bool]) -> Iterator[tuple[int, str]]:
    """(number of the line, its text) of those in blocks that matter; a long line comes in several pieces.

    A line that holds others, as a string with "\\n" written out does, comes as these, under one number.
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
