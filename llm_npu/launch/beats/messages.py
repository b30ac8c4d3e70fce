"""The lines that hub and members send each other: JSON, or empty for a beat."""

from __future__ import annotations

import asyncio
import contextlib
import json

from . import WORDS


async def send(writer: asyncio.StreamWriter, **message) -> None:
    """One line: empty for a beat. Errors are left to the reader of the same connection."""
    with contextlib.suppress(OSError):
        writer.write((json.dumps(message) if message else "").encode() + b"\n")
        await writer.drain()


async def receive(reader: asyncio.StreamReader) -> dict | None:
    """The next line's message, {} for a beat; None at the connection's end and for anything else.

    ``reader`` has the limit ``LONGEST``; a longer line is anything else.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError):
        line = await reader.readline()
        if line.endswith(b"\n"):
            message = json.loads(line) if line.strip() else {}
            return message if isinstance(message, dict) else None
    return None


def printable(value: object, longest: int = WORDS) -> str:
    """Text from another machine, for a terminal: on one line, without control characters, its end if long."""
    text = " ".join(str(value).split()) if isinstance(value, str) else ""
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= longest else f"... {text[-longest:]}"
