"""The process that beats for one rank of a run on several machines, and ends the rank when a machine is lost.

It runs beside the rank, because a thread of the rank could not beat while native code holds Python's lock.
The process of rank 0 listens on rank 0's own endpoint, which Paddle itself never opens, and is the ``Hub``;
every rank's process, also rank 0's, is a ``Member``, connected to it. Each sends an empty line every
``TICK``. The hub judges who is lost and tells all members; a member that hears nothing from the hub judges
for itself. Both count their own ticks instead of seconds: a run that was stopped as a whole, and continued,
has lost nobody.

    member -> hub    hello (rank, host, run), question, gone (the rank has ended: why),
                     bye (its work is done),
                     end (its own verdict: a first machine that was stopped reads it when it goes on)
    hub -> member    hello (its host), alive (the answer), end (sentence, exit code), over (the hub leaves)

``llm_npu.launch.heartbeat`` is the rank's side. This file is started by its path, and imports the standard
library only: it is there within a tenth of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

TICK = 0.5  # seconds between two beats
SILENT = 10  # ticks without a beat after which a rank counts as lost
START = 60  # ticks within which every rank has to be there
SETTLE = 2  # ticks between the end of one rank and the verdict: is its machine ending?
BEFORE_GONE = 0.3  # seconds; a machine that is being killed takes this process with the rank
LOST, FAILED = os.EX_TEMPFAIL, 1  # exit codes of the ranks that end
GRACE = 3.0  # seconds in which ranks may end by themselves, with their own message, when another has failed
FORCE = 2.0  # seconds after which a rank that should have ended is killed
LINGER = 120  # ticks that the hub stays for the others when rank 0 is done
LONGEST = 1 << 20  # bytes of a line
# {state of a rank: ticks in it that make a loss, and those that make it part of its machine's}
_LIMITS = {
    "absent": (START, START - 2),
    "present": (SILENT, SILENT - 2),
    "gone": (SETTLE, SETTLE - 1),
    "vanished": (SETTLE, SETTLE - 1),
}


@dataclass(frozen=True)
class Layout:
    """Which ranks of the run are on which machine, by the endpoints (address:port) of all ranks."""

    rank: int
    endpoints: list[str]

    @property
    def hub(self) -> tuple[str, int]:
        address, _, port = self.endpoints[0].rpartition(":")
        return address, int(port)

    def address(self, rank: int) -> str:
        return self.endpoints[rank].rpartition(":")[0]

    def on(self, address: str) -> list[int]:
        return [rank for rank in range(len(self.endpoints)) if self.address(rank) == address]

    def describe(self, address: str, host: str) -> str:
        """The machine, as "machine node7 (10.0.0.7, ranks 8 to 15)"."""
        ranks = self.on(address)
        numbers = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        return f"machine {host} ({address}, {numbers})" if host else f"the machine {address} ({numbers})"

    def own_network(self) -> str:
        """Why this machine reaches no other one; "" if its network seems to be there. Nothing is sent."""
        own, why = self.address(self.rank), ""
        for address in dict.fromkeys(map(self.address, range(len(self.endpoints)))):
            if address == own:
                continue
            try:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                    probe.bind((own, 0))
                    probe.connect((address, 9))
                return ""
            except OSError as error:
                why = error.strerror or str(error)
        return why

    def own_loss(self) -> str:
        """The sentence about a machine that has lost its own network; "" if it has not."""
        why = self.own_network()
        me = self.describe(self.address(self.rank), socket.gethostname())
        return f"{me} is lost to the others: it has no network ({why})." if why else ""


async def _send(writer: asyncio.StreamWriter, **message) -> None:
    """One line: empty for a beat. Errors are left to the reader of the same connection."""
    with contextlib.suppress(OSError):
        writer.write((json.dumps(message) if message else "").encode() + b"\n")
        await writer.drain()


async def _messages(reader: asyncio.StreamReader):
    """Yield each line's message, {} for a beat, until the connection ends or what comes is no message."""
    with contextlib.suppress(OSError, ValueError, asyncio.CancelledError):  # cancelled when the hub closes
        while line := await reader.readline():
            message = json.loads(line) if line.strip() else {}
            if not isinstance(message, dict):
                return
            yield message


@dataclass
class _Peer:
    """What the hub knows of a rank. ``state``: absent, present, left (done), gone, or vanished."""

    host: str = ""
    state: str = "absent"
    ticks: int = 0  # since it was heard of, or since it has ended
    writer: asyncio.StreamWriter | None = None
    asked: int | None = None  # the tick of its question
    why: str = ""  # its error


@dataclass
class Hub:
    """Hears the members of all ranks. ``accused``: the verdict of one that gave this machine up."""

    layout: Layout
    peers: list[_Peer] = field(default_factory=list)
    tick: int = 0
    accused: tuple[str, int] | None = None

    async def serve(self) -> asyncio.Server:
        self.peers = [_Peer() for _ in self.layout.endpoints]
        return await asyncio.start_server(self._hear, *self.layout.hub, limit=LONGEST)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = None
        async for message in _messages(reader):
            kind = message.get("kind")
            if peer is None:
                peer = self._greeted(message)
                if peer is None:
                    break
                peer.host, peer.state, peer.writer = str(message.get("host")), "present", writer
                await _send(writer, kind="hello", host=socket.gethostname())
            if peer.state == "present":
                peer.ticks = 0
            if kind == "question":
                peer.asked = self.tick
            elif kind in ("gone", "bye"):
                peer.state, peer.why = ("gone" if kind == "gone" else "left"), str(message.get("why") or "")
            elif kind == "end" and self.accused is None:
                self.accused = str(message.get("sentence")), LOST
        if peer is not None:
            peer.writer, peer.asked = None, None
            if peer.state == "present":
                peer.state, peer.ticks = "vanished", 0
        writer.close()

    def _greeted(self, message: dict) -> _Peer | None:
        """The rank that says hello; None for anybody who is not of this run."""
        rank = message.get("rank")
        if message.get("kind") != "hello" or message.get("run") != self.layout.endpoints:
            return None
        if type(rank) is not int or not 0 <= rank < len(self.peers) or self.peers[rank].state != "absent":
            return None
        return self.peers[rank]

    async def run(self) -> None:
        """Beat and judge, until all have left or have been told the verdict."""
        while not all(peer.state == "left" for peer in self.peers):
            await asyncio.sleep(TICK)
            self.tick += 1
            for peer in self.peers:
                peer.ticks += 1
            verdict = self.accused or self._verdict()
            if verdict is not None:
                sentence, code = verdict
                await self._tell(kind="end", sentence=sentence, code=code)
                break
            await self._tell()
            await self._answer()
            if self.peers[0].state == "left" and self.peers[0].ticks > LINGER:
                await self._tell(kind="over")
                break

    async def _tell(self, **message) -> None:
        told = [_send(peer.writer, **message) for peer in self.peers if peer.writer is not None]
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
                await _send(peer.writer, kind="alive")

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
            return " ".join(whole), LOST
        first = max(single, key=lambda rank: self.peers[rank].ticks)
        where = self.layout.describe(self.layout.address(first), self.peers[first].host)
        if self.peers[first].state == "gone":
            why = self.peers[first].why or "its log may say why."
            return f"rank {first} on {where} has ended before the run was over: {why}", FAILED
        return f"rank {first} on {where} is lost: {self._why(first)}.", LOST

    def _lost(self, rank: int, with_its_machine: bool = False) -> bool:
        peer = self.peers[rank]
        return peer.state in _LIMITS and peer.ticks >= _LIMITS[peer.state][with_its_machine]

    def _lost_machine(self, address: str, lost: list[int]) -> str:
        host = next((self.peers[rank].host for rank in self.layout.on(address) if self.peers[rank].host), "")
        return f"{self.layout.describe(address, host)} is lost: {self._why(lost[0])}."

    def _why(self, rank: int) -> str:
        state = self.peers[rank].state
        if state == "absent":
            return f"it has not come to {self.layout.endpoints[0]} within {START * TICK:g} seconds"
        if state == "present":
            return f"nothing has come from it for {SILENT * TICK:g} seconds"
        return "its processes have ended without a word"


class Member:
    """One rank's connection to the hub. ``rank_ended`` is set when the rank has ended, for any reason."""

    def __init__(self, layout: Layout, rank_ended: asyncio.Event, tell_rank: Callable[[str], None]):
        self.layout, self.rank_ended, self.tell_rank = layout, rank_ended, tell_rank
        self.hub_host, self.silent, self.over, self.left = "", 0, False, False
        self.writer: asyncio.StreamWriter | None = None

    async def run(self) -> tuple[str, int] | None:
        """The verdict, or None when there is nothing left to watch."""
        reader = await self._connected()
        if reader is None:
            return None if self.rank_ended.is_set() else self._hub_is_lost("cannot be reached")
        me = {"rank": self.layout.rank, "host": socket.gethostname(), "run": self.layout.endpoints}
        await _send(self.writer, kind="hello", **me)
        heard, beats = asyncio.create_task(self._hear(reader)), asyncio.create_task(self._beat())
        done, rest = await asyncio.wait([heard, beats], return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        verdict = (heard if heard in done else beats).result()
        if verdict is not None and heard not in done:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(_send(self.writer, kind="end", sentence=verdict[0]), TICK)
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
        async for message in _messages(reader):
            self.silent = 0
            kind = message.get("kind")
            if kind == "hello":
                self.hub_host = str(message.get("host"))
            elif kind == "alive":
                self.tell_rank("alive")
            elif kind == "end":
                return str(message.get("sentence")), int(message.get("code", LOST))
            elif kind == "over":
                return None
        return None if self.left else self._hub_is_lost("its processes have ended without a word")

    async def _beat(self) -> tuple[str, int] | None:
        while not self.left:
            await asyncio.sleep(TICK)
            self.silent += 1
            if self.silent > SILENT:
                return self._hub_is_lost(f"nothing has come from it for {SILENT * TICK:g} seconds")
            await _send(self.writer)
        return None

    async def leave(self, kind: str, why: str = "") -> None:
        """Tell the hub that the rank has ended: "bye" when its work is done, "gone" otherwise, and why."""
        if self.writer is not None:
            await _send(self.writer, kind=kind, why=why)
        self.left = kind == "bye"

    def _hub_is_lost(self, why: str) -> tuple[str, int]:
        if own := self.layout.own_loss():
            return own, LOST
        where = self.layout.describe(self.layout.hub[0], self.hub_host)
        return f"{where} is lost, or the network between it and {socket.gethostname()} is cut: {why}.", LOST


async def beat_for(rank_pid: int, layout: Layout) -> None:
    """Serve the rank ``rank_pid`` until it has ended; its words come on stdin, and go out on stdout."""
    loop, rank_ended = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(rank_pid)
    loop.add_reader(descriptor, lambda: (loop.remove_reader(descriptor), rank_ended.set()))

    def tell_rank(word: str) -> None:
        with contextlib.suppress(OSError):  # it has ended
            os.write(1, word.encode() + b"\n")

    hub = Hub(layout) if layout.rank == 0 else None
    server = await hub.serve() if hub else None
    judging = asyncio.create_task(hub.run()) if hub else None
    tell_rank("ready")
    member = Member(layout, rank_ended, tell_rank)
    watching = asyncio.create_task(member.run())
    following = asyncio.create_task(_follow(member))
    verdict = await watching
    if verdict is not None:
        await _end_rank(verdict, rank_pid, rank_ended, tell_rank)
    following.cancel()
    if server is not None:
        await judging
        server.close()


async def _follow(member: Member) -> None:
    """Pass on what the rank says, and that it has ended."""
    stdin = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    ended, why = asyncio.create_task(member.rank_ended.wait()), ""
    while True:
        word = asyncio.create_task(stdin.readline())
        await asyncio.wait([word, ended], return_when=asyncio.FIRST_COMPLETED)
        said = word.result().strip() if word.done() else b""
        if said == b"bye":
            return await member.leave("bye")
        if said == b"question":
            if member.writer is not None:
                await _send(member.writer, kind="question")
        elif said:
            why = said.decode(errors="replace")
        else:
            await member.rank_ended.wait()
            await asyncio.sleep(BEFORE_GONE)
            return await member.leave("gone", why)


async def _end_rank(
    verdict: tuple[str, int], pid: int, ended: asyncio.Event, tell_rank: Callable[[str], None]
) -> None:
    """Print the verdict, and end the rank with its exit code; kill it if that takes too long."""
    sentence, code = verdict
    if code == FAILED:
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(ended.wait(), GRACE)
    os.write(2, f"error: {sentence}\n".encode())
    tell_rank(f"end {code}")
    try:
        await asyncio.wait_for(ended.wait(), FORCE)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """``heartbeat_process.py PID RANK ENDPOINT...``, started by the rank PID."""
    # The launcher signals the whole group: the rank answers, and this process follows it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    pid, rank, *endpoints = sys.argv[1:]
    try:
        asyncio.run(beat_for(int(pid), Layout(int(rank), endpoints)))
    except OSError as error:
        print(f"taken: {error.strerror}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
