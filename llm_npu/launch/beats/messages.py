"""The lines that hub and members send each other: JSON, or empty for a beat."""

from __future__ import annotations

import asyncio
import contextlib
import json


async def send(writer: asyncio.StreamWriter, **message) -> None:
    """One line: empty for a beat. Errors are left to the reader of the same connection."""
    with contextlib.suppress(OSError):
        writer.write((json.dumps(message) if message else "").encode() + b"\n")
        await writer.drain()


async def messages(reader: asyncio.StreamReader):
    """Yield each line's message, {} for a beat, until the connection ends or what comes is no message."""
    with contextlib.suppress(OSError, ValueError, asyncio.CancelledError):  # cancelled when the hub closes
        while line := await reader.readline():
            message = json.loads(line) if line.strip() else {}
            if not isinstance(message, dict):
                return
            yield message
