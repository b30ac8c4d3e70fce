"""One rank's connection to the hub of the beats."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from . import LONGEST, LOST, SILENT, START, TICK
from .layout import Layout
from .messages import messages, send


class Member:
    """One rank's connection to the hub. ``rank_ended`` is set when the rank has ended, for any reason."""

    def __init__(self, layout: Layout, rank_ended: asyncio.Event, tell_rank: Callable[[str], None]):
        self.layout, self.rank_ended, self.tell_rank = layout, rank_ended, tell_rank
        self.hub_host, self.silent, self.left = "", 0, False
        self.writer: asyncio.StreamWriter | None = None

    async def run(self) -> tuple[str, int] | None:
        """The verdict, or None when there is nothing left to watch."""
        reader = await self._connected()
        if reader is None:
            done = self.rank_ended.is_set() or self.left
            return None if done else self._hub_is_lost("cannot be reached")
        me = {"rank": self.layout.rank, "host": socket.gethostname(), "run": self.layout.endpoints}
        await send(self.writer, kind="hello", **me)
        if self.left:
            await send(self.writer, kind="bye")
        heard, beats = asyncio.create_task(self._hear(reader)), asyncio.create_task(self._beat())
        done, rest = await asyncio.wait([heard, beats], return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        verdict = (heard if heard in done else beats).result()
        if verdict is not None and heard not in done:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(send(self.writer, kind="end", sentence=verdict[0]), TICK)
        return verdict

    async def _connected(self) -> asyncio.StreamReader | None:
        for _ in range(START):
            tick = asyncio.create_task(asyncio.sleep(TICK))
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                link = asyncio.open_connection(*self.layout.hub, limit=LONGEST)
                reader, self.writer = await asyncio.wait_for(link, TICK)
                return reader
            if self.rank_ended.is_set():
                return None
            await tick
        return None

    async def _hear(self, reader: asyncio.StreamReader) -> tuple[str, int] | None:
        async for message in messages(reader):
            self.silent = 0
            kind = message.get("kind")
            if kind == "hello":
                self.hub_host = str(message.get("host"))
            elif kind == "alive":
                self.tell_rank("alive")
            elif kind == "end":
                return str(message.get("sentence")), int(message.get("code", LOST))
            elif kind == "over":
                self.tell_rank("over")
                return None
        return None if self.left else self._hub_is_lost("its processes have ended without a word")

    async def _beat(self) -> tuple[str, int] | None:
        while True:
            await asyncio.sleep(TICK)
            self.silent += 1
            if self.silent > SILENT:
                why = f"nothing has come from it for {SILENT * TICK:g} seconds"
                return None if self.left else self._hub_is_lost(why)
            await send(self.writer)

    async def leave(self, kind: str, why: str = "") -> None:
        """Tell the hub that the rank has ended: "bye" when its work is done, "gone" otherwise, and why."""
        self.left = kind == "bye"
        if self.writer is not None:
            await send(self.writer, kind=kind, why=why)

    def _hub_is_lost(self, why: str) -> tuple[str, int]:
        if own := self.layout.own_loss():
            return own, LOST
        where = self.layout.describe(self.layout.hub[0], self.hub_host)
        return f"{where} is lost, or the network between it and {socket.gethostname()} is cut: {why}.", LOST
