"""Streams the events of a Chrome trace; memory use does not depend on the file size."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from llm_npu.core.errors import UserError

CHUNK = 8 << 20  # characters, far more than any event has
UNPACKED = 200  # maximum ratio of a .gz: traces expand about 20 times, nothing but zeros 1000 times
_BETWEEN = re.compile(r"[\s,]*")
_LIST = re.compile(r'\s*\[|.*?"traceEvents"\s*:\s*\[', re.DOTALL)


class TraceFile:
    """Iterates over the events of a JSON list or an object with ``traceEvents``; supports ``.gz``.

    After the iteration, ``broken_at`` is None, or the number of readable events of a damaged file. A killed
    profiler leaves an incomplete file.

    Args:
        fraction: converts numbers with a fraction; text stays exact (``times.nanoseconds``).
    """

    def __init__(self, path: Path, fraction: Callable[[str], object] = str):
        self.path = path
        self._fraction = fraction
        self.broken_at: int | None = None
        self._unpacked = 0

    def __iter__(self) -> Iterator[dict]:
        # Paddle writes call stacks with raw line breaks in them, which strict JSON forbids.
        decode = json.JSONDecoder(parse_float=self._fraction, strict=False).raw_decode
        unpack = gzip.open if self.path.suffix == ".gz" else open
        with unpack(self.path, "rt", encoding="utf-8-sig", errors="replace") as file:
            text = self._more(file)
            begin = _LIST.match(text)
            if begin is None:
                raise UserError(
                    f"{self.path.name} is {'not a Chrome trace' if text.strip() else 'empty'}; accepted: a "
                    'JSON list of events, or an object with "traceEvents". Export it again.'
                )
            position, count = begin.end(), 0
            while True:
                position = _BETWEEN.match(text, position).end()
                if text[position : position + 1] == "]":
                    return
                try:
                    event, position = decode(text, position)
                except RecursionError:  # no profiler writes this
                    self.broken_at = count
                    return
                except ValueError:  # JSONDecodeError, or a number with more digits than Python accepts
                    more = self._more(file)
                    text, position = text[position:] + more, 0
                    if not more or len(text) > 2 * CHUNK:
                        self.broken_at = count
                        return
                    continue
                count += 1
                yield event

    def _more(self, file) -> str:
        """The next characters; "" if a .gz is truncated or damaged."""
        try:
            text = file.read(CHUNK)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return ""
        self._unpacked += len(text)
        if self._unpacked > max(UNPACKED * self.path.stat().st_size, 2 * CHUNK):
            raise UserError(
                f"{self.path.name} unpacks to more than {UNPACKED} times its size, so it is not a trace"
            )
        return text
