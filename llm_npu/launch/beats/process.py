"""The process that beats for one rank: its arguments are FOLDER PID RANK ENDPOINT ...

The words of the rank PID come on its input: bye, question, or an error.
It answers: ready, alive, over, end CODE.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable

from . import BEFORE_GONE, FAILED, FORCE, GRACE
from .hub import Hub
from .layout import Layout
from .member import Member
from .messages import send


async def beat_for(rank_pid: int, layout: Layout) -> None:
    """Serve the rank ``rank_pid`` until it has ended; its words come on stdin, and go out on stdout."""
    loop, rank_ended = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(rank_pid)
    loop.add_reader(descriptor, lambda: (loop.remove_reader(descriptor), rank_ended.set()))

    def tell_rank(word: str) -> None:
        with contextlib.suppress(OSError):  # it has ended
            os.write(1, word.encode() + b"\n")

    hub = Hub(layout) if layout.rank == 0 else None
    door = hub.door() if hub else None
    opened = asyncio.create_task(door.open()) if door else None
    judging = asyncio.create_task(hub.run()) if hub else None
    tell_rank("ready")
    member = Member(layout, rank_ended, tell_rank)
    watching = asyncio.create_task(member.run())
    following = asyncio.create_task(_follow(member))
    verdict = await watching
    if verdict is not None:
        await _end_rank(verdict, rank_pid, rank_ended, tell_rank)
    following.cancel()
    if door is not None:
        later = await judging  # of those that work on when rank 0 is done
        opened.cancel()
        door.close()
        if later is not None and verdict is None:
            await _end_rank(later, rank_pid, rank_ended, tell_rank)


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
                await send(member.writer, kind="question")
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
    os.write(2, f"error: {sentence}\n".encode(errors="backslashreplace"))
    tell_rank(f"end {code}")
    try:
        await asyncio.wait_for(ended.wait(), FORCE)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Beat for the rank that has started this process."""
    # The launcher signals the whole group: the rank answers, and this process follows it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    _, pid, rank, *endpoints = sys.argv[1:]  # the folder of this package is the first
    # A connection for each rank, of which there may be more than the usual 1024.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        asyncio.run(
            beat_for(int(pid), Layout(int(rank), endpoints, os.environ.get("LLM_NPU_RUN_SECRET", "")))
        )
    except OSError as error:
        print(f"taken: {error.strerror}", flush=True)
        sys.exit(1)
