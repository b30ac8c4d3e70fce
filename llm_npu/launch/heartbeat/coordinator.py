"""The coordinator of the heartbeats: accepts the workers of all ranks and decides which machine is lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from . import (
    DRAIN,
    EXIT_FAILED,
    EXIT_GRACE,
    EXIT_LOST,
    HANDSHAKE_TIMEOUT,
    INTERVAL,
    JOIN_TIMEOUT,
    MAX_LINE,
    MAX_PENDING,
    TIMEOUT,
)
from .protocol import (
    BAD_SECRET,
    AdmittedRank,
    ConnectionRejected,
    Layout,
    SecretMismatch,
    Verdict,
    admit,
    printable,
    receive,
    send,
)

OnJoin = Callable[[AdmittedRank, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listener:
    """Accepts connections, and admits those that prove in a handshake that they are ranks of the run.

    A handshake is closed after ``HANDSHAKE_TIMEOUT`` seconds, or when it is the oldest of more than
    ``MAX_PENDING``: idle connections cost neither memory nor descriptors, and nothing is logged about them.

    Args:
        on_join: called with each admitted rank.
        on_bad_secret: called with the number of a rank whose secret differs.
    """

    def __init__(self, layout: Layout, on_join: OnJoin, on_bad_secret: Callable[[int], None]):
        self.layout, self.on_join, self.on_bad_secret = layout, on_join, on_bad_secret
        self._socket = socket.create_server(layout.coordinator, backlog=MAX_PENDING)
        self._socket.setblocking(False)
        self._pending: dict[asyncio.Task, None] = {}  # the oldest first

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(self._socket)
            except OSError:  # the connection is closed already, or this process has too many files open
                await asyncio.sleep(INTERVAL)
                continue
            if not self.layout.may_connect(address):
                connection.close()
                continue
            if len(self._pending) == MAX_PENDING:
                oldest = next(iter(self._pending))
                del self._pending[oldest]
                oldest.cancel()
            task = asyncio.create_task(self._handle(connection))
            task.add_done_callback(lambda task, connection=connection: self._close(task, connection))
            self._pending[task] = None
            await asyncio.sleep(0)  # sock_accept does not yield while connections are queued

    def close(self) -> None:
        self._socket.close()

    async def _handle(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=MAX_LINE)
        try:
            admitted = await asyncio.wait_for(admit(self.layout, reader, writer), HANDSHAKE_TIMEOUT)
            self._pending.pop(asyncio.current_task(), None)
            await self.on_join(admitted, reader, writer)
        except SecretMismatch as mismatch:
            self.on_bad_secret(mismatch.rank)
        except (ConnectionRejected, OSError, asyncio.TimeoutError):
            pass
        finally:
            writer.transport.abort()

    def _close(self, task: asyncio.Task, connection: socket.socket) -> None:
        self._pending.pop(task, None)
        connection.close()  # for a task that was cancelled before it started


class _Limits(NamedTuple):
    """Intervals in a state after which a rank is lost: alone, or together with its whole machine."""

    alone: int
    with_machine: int


_LIMITS = {
    "absent": _Limits(JOIN_TIMEOUT, JOIN_TIMEOUT - 2),
    "alive": _Limits(TIMEOUT, TIMEOUT - 2),
    "exited": _Limits(EXIT_GRACE, EXIT_GRACE - 1),
    "disconnected": _Limits(EXIT_GRACE, EXIT_GRACE - 1),
}


@dataclass
class _Peer:
    """The coordinator's state of one rank.

    Attributes:
        state: absent, alive, done, exited or disconnected.
        intervals: since its last message, or since it left.
        check_requested: the interval of its unanswered check_alive.
        reason: its error; for an absent rank, why it was rejected.
    """

    host: str = ""
    state: str = "absent"
    intervals: int = 0
    writer: asyncio.StreamWriter | None = None
    check_requested: int | None = None
    reason: str = ""


@dataclass
class Coordinator:
    """Receives the heartbeats of all ranks. ``reported``: the verdict of a worker that timed out on it."""

    layout: Layout
    peers: list[_Peer] = field(default_factory=list)
    interval: int = 0
    reported: Verdict | None = None

    def listen(self) -> Listener:
        """Listen on rank 0's endpoint. Raises OSError on failure."""
        self.peers = [_Peer() for _ in self.layout.endpoints]
        return Listener(self.layout, self._serve_worker, self._note_bad_secret)

    def _note_bad_secret(self, rank: int) -> None:
        if self.peers[rank].state == "absent":
            self.peers[rank].reason = BAD_SECRET

    async def _serve_worker(
        self, admitted: AdmittedRank, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        peer = self.peers[admitted.rank]
        if peer.state != "absent":
            return
        peer.host, peer.state, peer.intervals = admitted.host, "alive", 0
        peer.reason, peer.writer = "", writer
        await send(writer, kind="welcome")
        while (message := await receive(reader)) is not None:
            kind = message.get("kind")
            if peer.state == "alive":
                peer.intervals = 0
            if kind == "check_alive":
                peer.check_requested = self.interval
            elif kind == "exited":
                peer.state, peer.reason = "exited", printable(message.get("reason"))
            elif kind == "goodbye":
                peer.state = "done"
                await send(writer, kind="shutdown")
            elif kind == "coordinator_lost" and self.reported is None:
                self.reported = Verdict(self._timed_out_on_us(admitted.rank), EXIT_LOST)
        peer.writer, peer.check_requested = None, None
        if peer.state == "alive":
            peer.state, peer.intervals = "disconnected", 0

    async def run(self) -> Verdict | None:
        """Send heartbeats until all ranks are done, or until a verdict, which is sent to all workers.

        Ranks that are still running ``DRAIN`` intervals after rank 0 are no longer watched.
        """
        while not all(peer.state == "done" for peer in self.peers):
            await asyncio.sleep(INTERVAL)
            self.interval += 1
            for peer in self.peers:
                peer.intervals += 1
            verdict = self.reported or self._verdict()
            if verdict is not None:
                await self._broadcast(kind="abort", **verdict._asdict())
                return verdict
            await self._broadcast()
            await self._answer_checks()
            if self.peers[0].state == "done" and self.peers[0].intervals > DRAIN:
                await self._broadcast(kind="shutdown")
                break
        return None

    async def _broadcast(self, **message) -> None:
        sends = [send(peer.writer, **message) for peer in self.peers if peer.writer is not None]
        with contextlib.suppress(asyncio.TimeoutError):  # the buffer of a lost rank may be full
            await asyncio.wait_for(asyncio.gather(*sends), INTERVAL)

    async def _answer_checks(self) -> None:
        """Answer each check_alive since which all other ranks have sent a heartbeat."""
        if any(peer.state in ("exited", "disconnected") for peer in self.peers):
            return
        for peer in self.peers:
            if peer.check_requested is None:
                continue
            waited = self.interval - peer.check_requested
            if all(other.intervals < waited for other in self.peers if other.state == "alive"):
                peer.check_requested = None
                await send(peer.writer, kind="alive")

    def _verdict(self) -> Verdict | None:
        """The message about a lost rank or machine, and the exit code of all ranks; None if none is lost."""
        suspects = [rank for rank in range(len(self.peers)) if self._is_lost(rank)]
        if not suspects:
            return None
        machines, single = [], []
        for address in dict.fromkeys(map(self.layout.address, suspects)):
            here = [rank for rank in self.layout.on(address) if self.peers[rank].state != "done"]
            lost_here = [rank for rank in here if self._is_lost(rank)]
            all_reported_exit = all(self.peers[rank].state == "exited" for rank in here)
            if not all_reported_exit and all(self._is_lost(rank, with_machine=True) for rank in here):
                machines.append(f"{self._describe(address)} is lost: {self._reason(lost_here[0])}.")
            else:
                single += lost_here
        silent = all(self.peers[rank].state in ("alive", "absent") for rank in suspects)
        if silent and (own_loss := self.layout.own_loss()):
            return Verdict(own_loss, EXIT_LOST)
        if machines:
            return Verdict(self._all_others_silent() or " ".join(machines), EXIT_LOST)
        first = max(single, key=lambda rank: self.peers[rank].intervals)
        where = self.layout.describe(self.layout.address(first), self.peers[first].host)
        if self.peers[first].state == "exited":
            reason = self.peers[first].reason or "see its log."
            return Verdict(
                f"rank {first} on {where} exited before the run was complete: {reason}", EXIT_FAILED
            )
        return Verdict(f"rank {first} on {where} is lost: {self._reason(first)}.", EXIT_LOST)

    def _is_lost(self, rank: int, with_machine: bool = False) -> bool:
        peer = self.peers[rank]
        limits = _LIMITS.get(peer.state)
        return limits is not None and peer.intervals >= (
            limits.with_machine if with_machine else limits.alone
        )

    def _all_others_silent(self) -> str:
        """The message if all other machines are silent, which may be this machine's fault; "" otherwise."""
        own = self.layout.address(self.layout.rank)
        others = {
            rank: peer
            for rank, peer in enumerate(self.peers)
            if self.layout.address(rank) != own and peer.state != "done"
        }
        silent = [peer.state == "alive" and self._is_lost(rank, True) for rank, peer in others.items()]
        if not silent or not all(silent):
            return ""
        addresses = list(dict.fromkeys(map(self.layout.address, others)))
        if len(addresses) == 1:
            cut = f"or the network between it and {socket.gethostname()} is down"
            return f"{self._describe(addresses[0])} is lost, {cut}: {self._reason(min(others))}."
        return (
            f"no heartbeat from any other machine for {TIMEOUT * INTERVAL:g} seconds: {self._describe(own)} "
            "is cut off from them, or all of them are lost."
        )

    def _timed_out_on_us(self, rank: int) -> str:
        own, other = self.layout.address(self.layout.rank), self.layout.address(rank)
        return (
            f"{self._describe(own)} was cut off from the other machines: rank {rank} on "
            f"{self.layout.describe(other, self.peers[rank].host)} received no heartbeat from it for "
            f"{TIMEOUT * INTERVAL:g} seconds."
        )

    def _describe(self, address: str) -> str:
        host = next((self.peers[rank].host for rank in self.layout.on(address) if self.peers[rank].host), "")
        return self.layout.describe(address, host)

    def _reason(self, rank: int) -> str:
        state = self.peers[rank].state
        if state == "absent":
            late = (
                f"it did not connect to {self.layout.endpoints[0]} within {JOIN_TIMEOUT * INTERVAL:g} seconds"
            )
            return ": ".join(filter(None, [late, self.peers[rank].reason]))
        if state == "alive":
            return f"no heartbeat for {TIMEOUT * INTERVAL:g} seconds"
        return "its processes exited without reporting a reason"
