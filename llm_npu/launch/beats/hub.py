"""The hub of the beats: it hears the ranks of all machines, and decides who is lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field

from . import FAILED, LINGER, LOST, SETTLE, SILENT, START, TICK
from .door import Door
from .handshake import OTHER_SECRET, Guest
from .layout import Layout
from .messages import printable, receive, send

# {state of a rank: ticks in it that make a loss, and those that make it part of its machine's}
_LIMITS = {
    "absent": (START, START - 2),
    "present": (SILENT, SILENT - 2),
    "gone": (SETTLE, SETTLE - 1),
    "vanished": (SETTLE, SETTLE - 1),
}


@dataclass
class _Peer:
    """What the hub knows of a rank. ``state``: absent, present, left (done), gone, or vanished."""

    host: str = ""
    state: str = "absent"
    ticks: int = 0  # since it was heard of, or since it has ended
    writer: asyncio.StreamWriter | None = None
    asked: int | None = None  # the tick of its question
    why: str = ""  # its error; of an absent rank, why it was refused


@dataclass
class Hub:
    """Hears the members of all ranks. ``accused``: the verdict of one that gave this machine up."""

    layout: Layout
    peers: list[_Peer] = field(default_factory=list)
    tick: int = 0
    accused: tuple[str, int] | None = None

    def door(self) -> Door:
        """Listen on rank 0's endpoint. OSError if that is not possible."""
        self.peers = [_Peer() for _ in self.layout.endpoints]
        return Door(self.layout, self._hear, self._refuse)

    def _refuse(self, rank: int) -> None:
        if self.peers[rank].state == "absent":
            self.peers[rank].why = OTHER_SECRET

    async def _hear(self, guest: Guest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = self.peers[guest.rank]
        if peer.state != "absent":
            return
        peer.host, peer.state, peer.ticks, peer.why, peer.writer = guest.host, "present", 0, "", writer
        await send(writer, kind="welcome")
        while (message := await receive(reader)) is not None:
            kind = message.get("kind")
            if peer.state == "present":
                peer.ticks = 0
            if kind == "question":
                peer.asked = self.tick
            elif kind in ("gone", "bye"):
                peer.state, peer.why = ("gone" if kind == "gone" else "left"), printable(message.get("why"))
                if kind == "bye":
                    await send(writer, kind="over")
            elif kind == "end" and self.accused is None:
                self.accused = self._given_up_by(guest.rank), LOST
        peer.writer, peer.asked = None, None
        if peer.state == "present":
            peer.state, peer.ticks = "vanished", 0

    async def run(self) -> tuple[str, int] | None:
        """Beat and judge, until all have left or have been told the verdict, which is returned.

        Those that are not done ``LINGER`` ticks after rank 0 work on without being watched.
        """
        while not all(peer.state == "left" for peer in self.peers):
            await asyncio.sleep(TICK)
            self.tick += 1
            for peer in self.peers:
                peer.ticks += 1
            verdict = self.accused or self._verdict()
            if verdict is not None:
                sentence, code = verdict
                await self._tell(kind="end", sentence=sentence, code=code)
                return verdict
            await self._tell()
            await self._answer()
            if self.peers[0].state == "left" and self.peers[0].ticks > LINGER:
                await self._tell(kind="over")
                break
        return None

    async def _tell(self, **message) -> None:
        told = [send(peer.writer, **message) for peer in self.peers if peer.writer is not None]
        with contextlib.suppress(asyncio.TimeoutError):  # the buffer of a lost rank may be full
            await asyncio.wait_for(asyncio.gather(*told), TICK)

    async def _answer(self) -> None:
        """Answer those whose question all others have outlived."""
        for peer in self.peers:
            if peer.asked is None or any(each.state in ("gone", "vanished") for each in self.peers):
                continue
            waited = self.tick - peer.asked
            if all(each.ticks < waited for each in self.peers if each.state == "present"):
                peer.asked = None
                await send(peer.writer, kind="alive")

    def _verdict(self) -> tuple[str, int] | None:
        """The sentence about who is lost, and the exit code of all ranks; None as long as nobody is."""
        suspects = [rank for rank in range(len(self.peers)) if self._lost(rank)]
        if not suspects:
            return None
        whole, single = [], []
        for address in dict.fromkeys(map(self.layout.address, suspects)):
            here = [rank for rank in self.layout.on(address) if self.peers[rank].state != "left"]
            lost_here = [rank for rank in here if self._lost(rank)]
            ended_by_itself = all(self.peers[rank].state == "gone" for rank in here)
            if not ended_by_itself and all(self._lost(rank, with_its_machine=True) for rank in here):
                whole.append(self._lost_machine(address, lost_here))
            else:
                single += lost_here
        silent = all(self.peers[rank].state in ("present", "absent") for rank in suspects)
        if silent and (own := self.layout.own_loss()):
            return own, LOST
        if whole:
            return self._cut_off() or " ".join(whole), LOST
        first = max(single, key=lambda rank: self.peers[rank].ticks)
        where = self.layout.describe(self.layout.address(first), self.peers[first].host)
        if self.peers[first].state == "gone":
            why = self.peers[first].why or "its log may say why."
            return f"rank {first} on {where} has ended before the run was over: {why}", FAILED
        return f"rank {first} on {where} is lost: {self._why(first)}.", LOST

    def _lost(self, rank: int, with_its_machine: bool = False) -> bool:
        peer = self.peers[rank]
        return peer.state in _LIMITS and peer.ticks >= _LIMITS[peer.state][with_its_machine]

    def _cut_off(self) -> str:
        """The sentence where all other machines are silent, which may be this one's fault; "" otherwise."""
        own = self.layout.address(self.layout.rank)
        others = {
            rank: peer
            for rank, peer in enumerate(self.peers)
            if self.layout.address(rank) != own and peer.state != "left"
        }
        silent = [peer.state == "present" and self._lost(rank, True) for rank, peer in others.items()]
        if not silent or not all(silent):
            return ""
        addresses = list(dict.fromkeys(map(self.layout.address, others)))
        if len(addresses) == 1:
            cut = f"or the network between it and {socket.gethostname()} is cut"
            return f"{self._described(addresses[0])} is lost, {cut}: {self._why(min(others))}."
        return (
            f"nothing has come from any other machine for {SILENT * TICK:g} seconds: {self._described(own)} "
            "is cut off from them, or all of them are lost."
        )

    def _given_up_by(self, rank: int) -> str:
        own, other = self.layout.address(self.layout.rank), self.layout.address(rank)
        return (
            f"{self._described(own)} is lost to the others: nothing has come from it to rank {rank} on "
            f"{self.layout.describe(other, self.peers[rank].host)} for {SILENT * TICK:g} seconds."
        )

    def _lost_machine(self, address: str, lost: list[int]) -> str:
        return f"{self._described(address)} is lost: {self._why(lost[0])}."

    def _described(self, address: str) -> str:
        host = next((self.peers[rank].host for rank in self.layout.on(address) if self.peers[rank].host), "")
        return self.layout.describe(address, host)

    def _why(self, rank: int) -> str:
        state = self.peers[rank].state
        if state == "absent":
            late = f"it has not come to {self.layout.endpoints[0]} within {START * TICK:g} seconds"
            return ": ".join(filter(None, [late, self.peers[rank].why]))
        if state == "present":
            return f"nothing has come from it for {SILENT * TICK:g} seconds"
        return "its processes have ended without a word"
