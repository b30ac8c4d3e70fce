"""Reads the events of a Chrome trace one by one, in memory that does not grow with the file."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from llm_npu.core.errors import UserError

CHUNK = 8 << 20  # characters; no event is nearly as long
UNPACKED = 200  # times the size of a .gz: traces are some 20 times as long, nothing but zeros 1000 times
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
        self._unpacked = 0

    def __iter__(self) -> Iterator[dict]:
        # Paddle writes call stacks with raw line ends in them, which strict JSON does not allow.
        decode = json.JSONDecoder(parse_float=str, strict=False).raw_decode
        unpack = gzip.open if self.path.suffix == ".gz" else open
        with unpack(self.path, "rt", encoding="utf-8-sig", errors="replace") as file:
            text = self._more(file)
            begin = _LIST.match(text)
            if begin is None:
                raise UserError(
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
                except RecursionError:  # nothing that a profiler writes
                    self.broken_at = count
                    return
                except ValueError:  # JSONDecodeError, or a number of more digits than Python takes
                    more = self._more(file)
                    text, position = text[position:] + more, 0
                    if not more or len(text) > 2 * CHUNK:
                        self.broken_at = count
                        return
                    continue
                count += 1
                yield event

    def _more(self, file) -> str:
        """The next characters; none where a .gz is cut off or damaged."""
        try:
            text = file.read(CHUNK)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return ""
        self._unpacked += len(text)
        if self._unpacked > max(UNPACKED * self.path.stat().st_size, 2 * CHUNK):
            raise UserError(
                f"{self.path.name} unpacks to more than {UNPACKED} times its size: it is no trace."
            )
        return text
