"""One rank's connection to the coordinator of the heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from . import (
    EXIT_BAD_SECRET,
    EXIT_FAILED,
    EXIT_LOST,
    HANDSHAKE_TIMEOUT,
    INTERVAL,
    JOIN_TIMEOUT,
    MAX_LINE,
    TIMEOUT,
)
from .protocol import (
    BAD_SECRET,
    ConnectionRejected,
    Layout,
    SecretMismatch,
    Verdict,
    join,
    printable,
    receive,
    send,
)

NOT_RANK_0 = "the process that answers there is not rank 0 of this run"
OTHER_ADDRESS = ", or sees this rank under a different address (allowed with LLM_NPU_RUN_SECRET only)"


class Worker:
    """One rank's connection to the coordinator.

    Args:
        rank_exited: set when the rank has exited, for any reason.
        notify_rank: sends one line to the rank.
    """

    def __init__(self, layout: Layout, rank_exited: asyncio.Event, notify_rank: Callable[[str], None]):
        self.layout, self.rank_exited, self.notify_rank = layout, rank_exited, notify_rank
        self.coordinator_host, self.silent, self.done = "", 0, False
        self._connect_error = "it cannot be reached"
        self.writer: asyncio.StreamWriter | None = None

    async def run(self) -> Verdict | None:
        """The verdict, or None when there is nothing left to watch."""
        try:
            reader = await self._connect()
        except SecretMismatch:
            return Verdict(self._bad_secret_message(), EXIT_BAD_SECRET)
        if reader is None:
            done = self.rank_exited.is_set() or self.done
            return None if done else self._coordinator_lost(self._connect_error)
        if self.done:
            await send(self.writer, kind="goodbye")
        receiving = asyncio.create_task(self._receive(reader))
        sending = asyncio.create_task(self._send_heartbeats())
        finished, rest = await asyncio.wait([receiving, sending], return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        verdict = (receiving if receiving in finished else sending).result()
        if verdict is not None and receiving not in finished:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(send(self.writer, kind="coordinator_lost"), INTERVAL)
        return verdict

    async def _connect(self) -> asyncio.StreamReader | None:
        """Connect and join; None after ``JOIN_TIMEOUT`` intervals. Raises SecretMismatch."""
        # Without a secret the coordinator identifies a rank by its address, which need not be the route's.
        own = None if self.layout.secret else (self.layout.address(self.layout.rank), 0)
        intervals = 0
        while intervals < JOIN_TIMEOUT:
            interval, writer = asyncio.create_task(asyncio.sleep(INTERVAL)), None
            try:
                link = asyncio.open_connection(*self.layout.coordinator, limit=MAX_LINE, local_addr=own)
                reader, writer = await asyncio.wait_for(link, INTERVAL)
                self._connect_error = NOT_RANK_0 if own is None else f"{NOT_RANK_0}{OTHER_ADDRESS}"
                self.coordinator_host = await asyncio.wait_for(
                    join(self.layout, reader, writer), HANDSHAKE_TIMEOUT
                )
                self.writer = writer
                return reader
            except asyncio.TimeoutError:
                intervals += round(HANDSHAKE_TIMEOUT / INTERVAL) if writer else 0
            except (OSError, ConnectionRejected):
                pass
            finally:
                if writer is not self.writer:
                    writer.transport.abort()
            if self.rank_exited.is_set():
                return None
            await interval
            intervals += 1
        return None

    async def _receive(self, reader: asyncio.StreamReader) -> Verdict | None:
        while (message := await receive(reader)) is not None:
            self.silent = 0
            kind = message.get("kind")
            if kind == "alive":
                self.notify_rank("alive")
            elif kind == "abort":
                code = message.get("exit_code")
                code = code if code in (EXIT_LOST, EXIT_FAILED) else EXIT_LOST
                return Verdict(printable(message.get("message")), code)
            elif kind == "shutdown":
                self.notify_rank("shutdown")
                return None
        return (
            None if self.done else self._coordinator_lost("its processes exited without reporting a reason")
        )

    async def _send_heartbeats(self) -> Verdict | None:
        while True:
            await asyncio.sleep(INTERVAL)
            self.silent += 1
            if self.silent > TIMEOUT:
                reason = f"no heartbeat for {TIMEOUT * INTERVAL:g} seconds"
                return None if self.done else self._coordinator_lost(reason)
            await send(self.writer)

    async def goodbye(self) -> None:
        """The rank's work is complete."""
        self.done = True
        if self.writer is not None:
            await send(self.writer, kind="goodbye")

    async def exited(self, reason: str) -> None:
        """The rank has exited before its work was complete."""
        if self.writer is not None:
            await send(self.writer, kind="exited", reason=reason)

    def _bad_secret_message(self) -> str:
        coordinator, host = self.layout.endpoints[0], socket.gethostname()
        return (
            f"rank {self.layout.rank} on {host} cannot join rank 0 at {coordinator}: {BAD_SECRET}; set the "
            "same LLM_NPU_RUN_SECRET on all machines."
        )

    def _coordinator_lost(self, reason: str) -> Verdict:
        if own_loss := self.layout.own_loss():
            return Verdict(own_loss, EXIT_LOST)
        where = self.layout.describe(self.layout.coordinator[0], self.coordinator_host)
        cut = f"or the network between it and {socket.gethostname()} is down"
        return Verdict(f"{where} is lost, {cut}: {reason}.", EXIT_LOST)
