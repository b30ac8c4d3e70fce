"""One rank's connection to the hub of the beats."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from . import FAILED, HANDSHAKE, LONGEST, LOST, REFUSED, SILENT, START, TICK
from .handshake import OTHER_SECRET, Closed, OtherSecret, join
from .layout import Layout
from .messages import printable, receive, send

NOT_ADMITTED = "what answers there is not rank 0 of this run"
OTHER_ADDRESS = ", or sees another address than this rank's, which LLM_NPU_RUN_SECRET allows"


class Member:
    """One rank's connection to the hub. ``rank_ended`` is set when the rank has ended, for any reason."""

    def __init__(self, layout: Layout, rank_ended: asyncio.Event, tell_rank: Callable[[str], None]):
        self.layout, self.rank_ended, self.tell_rank = layout, rank_ended, tell_rank
        self.hub_host, self.silent, self.left, self._why = "", 0, False, "cannot be reached"
        self.writer: asyncio.StreamWriter | None = None

    async def run(self) -> tuple[str, int] | None:
        """The verdict, or None when there is nothing left to watch."""
        try:
            reader = await self._connected()
        except OtherSecret:
            return self._refusal(), REFUSED
        if reader is None:
            done = self.rank_ended.is_set() or self.left
            return None if done else self._hub_is_lost(self._why)
        if self.left:
            await send(self.writer, kind="bye")
        heard, beats = asyncio.create_task(self._hear(reader)), asyncio.create_task(self._beat())
        done, rest = await asyncio.wait([heard, beats], return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        verdict = (heard if heard in done else beats).result()
        if verdict is not None and heard not in done:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(send(self.writer, kind="end"), TICK)
        return verdict

    async def _connected(self) -> asyncio.StreamReader | None:
        """Connect to the hub, and prove who this is; None after ``START`` ticks. Raises OtherSecret."""
        # Without a secret the hub knows a rank by its address, which need not be the route's.
        own = None if self.layout.secret else (self.layout.address(self.layout.rank), 0)
        ticks = 0
        while ticks < START:
            tick, writer = asyncio.create_task(asyncio.sleep(TICK)), None
            try:
                link = asyncio.open_connection(*self.layout.hub, limit=LONGEST, local_addr=own)
                reader, writer = await asyncio.wait_for(link, TICK)
                self._why = NOT_ADMITTED if own is None else f"{NOT_ADMITTED}{OTHER_ADDRESS}"
                self.hub_host = await asyncio.wait_for(join(self.layout, reader, writer), HANDSHAKE)
                self.writer = writer
                return reader
            except asyncio.TimeoutError:
                ticks += round(HANDSHAKE / TICK) if writer else 0
            except (OSError, Closed):
                pass
            finally:
                if writer is not self.writer:
                    writer.transport.abort()
            if self.rank_ended.is_set():
                return None
            await tick
            ticks += 1
        return None

    async def _hear(self, reader: asyncio.StreamReader) -> tuple[str, int] | None:
        while (message := await receive(reader)) is not None:
            self.silent = 0
            kind = message.get("kind")
            if kind == "alive":
                self.tell_rank("alive")
            elif kind == "end":
                code = message.get("code")
                return printable(message.get("sentence")), code if code in (LOST, FAILED) else LOST
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

    def _refusal(self) -> str:
        where, here = self.layout.endpoints[0], socket.gethostname()
        return (
            f"rank {self.layout.rank} on {here} does not belong to rank 0 at {where}: {OTHER_SECRET}; set "
            "the same LLM_NPU_RUN_SECRET on all machines."
        )

    def _hub_is_lost(self, why: str) -> tuple[str, int]:
        if own := self.layout.own_loss():
            return own, LOST
        where = self.layout.describe(self.layout.hub[0], self.hub_host)
        return f"{where} is lost, or the network between it and {socket.gethostname()} is cut: {why}.", LOST
