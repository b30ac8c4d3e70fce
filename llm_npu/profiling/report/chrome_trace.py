"""Reads the events of a Chrome trace one by one: the memory it takes does not grow with the file."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

CHUNK = 8 << 20  # characters; no event is nearly as long
_BETWEEN = re.compile(r"[\s,]*")
_LIST = re.compile(r'\s*\[|.*?"traceEvents"\s*:\s*\[', re.DOTALL)


class TraceFile:
    """The events of a file: a list of events, or an object with ``traceEvents``; ``.gz`` is unpacked.

    Numbers with a fraction come as text (``times.nanoseconds`` says why). After the iteration ``broken_at``
    is None, or the number of events before the place where the file cannot be read further: profilers that
    are killed leave half a file.
    """

    def __init__(self, path: Path):
        self.path = path
        self.broken_at: int | None = None

    def __iter__(self) -> Iterator[dict]:
        # Paddle writes call stacks with raw line ends in them, which strict JSON does not allow.
        decode = json.JSONDecoder(parse_float=str, strict=False).raw_decode
        unpack = gzip.open if self.path.suffix == ".gz" else open
        with unpack(self.path, "rt", encoding="utf-8-sig", errors="replace") as file:
            text = file.read(CHUNK)
            begin = _LIST.match(text)
            if begin is None:
                raise ValueError(
                    f"{self.path.name} is {'no Chrome trace' if text.strip() else 'empty'}: it must be a "
                    'JSON list of events or an object with "traceEvents". Export it again.'
                )
            position, count = begin.end(), 0
            while True:
                position = _BETWEEN.match(text, position).end()
                if text[position : position + 1] == "]":
                    return
                try:
                    event, position = decode(text, position)
                except json.JSONDecodeError:
                    more = file.read(CHUNK)
                    text, position = text[position:] + more, 0
                    if not more or len(text) > 2 * CHUNK:
                        self.broken_at = count
                        return
                    continue
                count += 1
                yield event
