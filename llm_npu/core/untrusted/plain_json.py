"""Untrusted JSON: raises UserError for text that is too deep, too long or not JSON."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

from llm_npu.core.errors import UserError

from .git_lfs import refuse_pointer

LARGEST = 32 << 20  # bytes of a file; parsed in Python, its content needs up to twenty times as much


def loads(text: str | bytes, pairs: Callable | None = None, number: Callable[[str], object] | None = None):
    """``json.loads``, but also raises JSONDecodeError for deep nesting and for numbers Python cannot parse.

    ``pairs`` builds mappings from key-value pairs; ``number`` parses numbers.
    """
    try:
        return json.loads(
            text, object_pairs_hook=pairs, parse_int=number, parse_float=number, parse_constant=number
        )
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("Nested too deeply", _start(text), 0) from None
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError(f"Invalid UTF-8 at byte {error.start}", _start(text), 0) from None
    except ValueError as error:  # more digits than Python accepts, or rejected by the hook
        if pairs is not None:
            raise
        raise json.JSONDecodeError(str(error), _start(text), 0) from None


def load(file: str | Path):
    """The content of ``file``. Raises UserError, naming the file, if it is not JSON or exceeds 32 MiB."""
    path = Path(file)
    if path.exists() and not path.is_file():  # opening a FIFO waits for a writer
        raise UserError(f"{file} cannot be read as JSON: it is not a regular file")
    try:
        return loads(text_of(file))
    except json.JSONDecodeError as error:
        raise UserError(f"{file} cannot be read as JSON: {error.msg} (line {error.lineno})") from None


def mapping(file: str | Path) -> dict:
    """The JSON object in ``file``. Raises UserError as `load` does, and for any other JSON value."""
    content = load(file)
    if not isinstance(content, dict):
        raise UserError(f"{file} cannot be read: it must hold a JSON object, not a {type(content).__name__}")
    return content


def text_of(file: str | Path, largest: int = LARGEST) -> str:
    """The UTF-8 text in ``file``, with line ends as \\n. Raises UserError if it is too large or not text."""
    with Path(file).open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size or largest  # a device reports no size and never ends
        content = stream.read(min(size, largest) + 1)
    refuse_pointer(file, content)
    if len(content) > largest:
        limit = f"{largest >> 20} MiB" if largest >> 20 else f"{largest >> 10} KiB"
        raise UserError(f"{file} is larger than {limit}, the limit for files of its kind")
    try:
        return io.TextIOWrapper(io.BytesIO(content), "utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise UserError(f"{file} cannot be read: invalid UTF-8 at byte {error.start}") from None


def _start(text: str | bytes) -> str:
    return text[:1].decode("latin-1") if isinstance(text, bytes) else text[:1]
