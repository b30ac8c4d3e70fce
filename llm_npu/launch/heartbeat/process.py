"""The process that sends the heartbeats of one rank; its arguments are FOLDER PID RANK ENDPOINT ...

It reads from the rank PID on stdin: goodbye, check_alive, or "error TEXT" before the rank exits.
It writes to the rank on stdout: ready, alive, shutdown, abort CODE; or "endpoint_error TEXT" and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable

from . import ABORT_GRACE, EXIT_DELAY, EXIT_FAILED, KILL_AFTER
from .coordinator import Coordinator
from .protocol import Layout, Verdict, send
from .worker import Worker


async def watch_rank(rank_pid: int, layout: Layout) -> None:
    """Send the heartbeats of the process ``rank_pid`` until it has exited or a verdict ends it."""
    loop, rank_exited = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(rank_pid)
    loop.add_reader(descriptor, lambda: (loop.remove_reader(descriptor), rank_exited.set()))

    def notify_rank(line: str) -> None:
        with contextlib.suppress(OSError):  # the rank has exited
            os.write(1, line.encode() + b"\n")

    coordinator = Coordinator(layout) if layout.rank == 0 else None
    listener = coordinator.listen() if coordinator else None
    serving = asyncio.create_task(listener.serve()) if listener else None
    coordinating = asyncio.create_task(coordinator.run()) if coordinator else None
    notify_rank("ready")
    worker = Worker(layout, rank_exited, notify_rank)
    watching = asyncio.create_task(worker.run())
    reading = asyncio.create_task(_read_commands(worker))
    verdict = await watching
    if verdict is not None:
        await _end_rank(verdict, rank_pid, rank_exited, notify_rank)
    reading.cancel()
    if listener is not None:
        later = await coordinating  # about ranks that continue after rank 0 is done
        serving.cancel()
        listener.close()
        if later is not None and verdict is None:
            await _end_rank(later, rank_pid, rank_exited, notify_rank)


async def _read_commands(worker: Worker) -> None:
    """Forward the commands of the rank, and its exit."""
    stdin = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    exited, reason = asyncio.create_task(worker.rank_exited.wait()), ""
    while True:
        reading = asyncio.create_task(stdin.readline())
        await asyncio.wait([reading, exited], return_when=asyncio.FIRST_COMPLETED)
        line = reading.result() if reading.done() else b""
        command, _, text = line.decode(errors="replace").strip().partition(" ")
        if command == "goodbye":
            return await worker.goodbye()
        if command == "check_alive":
            if worker.writer is not None:
                await send(worker.writer, kind="check_alive")
        elif command == "error":
            reason = text
        else:
            await worker.rank_exited.wait()
            await asyncio.sleep(EXIT_DELAY)
            return await worker.exited(reason)


async def _end_rank(
    verdict: Verdict, pid: int, exited: asyncio.Event, notify_rank: Callable[[str], None]
) -> None:
    """Print the verdict, and make the rank exit with its code; kill it if that takes too long."""
    if verdict.exit_code == EXIT_FAILED:
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(exited.wait(), ABORT_GRACE)
    os.write(2, f"error: {verdict.message}\n".encode(errors="backslashreplace"))
    notify_rank(f"abort {verdict.exit_code}")
    try:
        await asyncio.wait_for(exited.wait(), KILL_AFTER)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Send the heartbeats of the rank that has started this process."""
    # The launcher signals the whole process group: the rank handles signals, and this process follows it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    _, pid, rank, *endpoints = sys.argv[1:]  # the folder of this package is the first
    # One connection for each rank, possibly more than the usual limit of 1024.
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    layout = Layout(int(rank), endpoints, os.environ.get("LLM_NPU_RUN_SECRET", ""))
    try:
        asyncio.run(watch_rank(int(pid), layout))
    except OSError as error:
        print(f"endpoint_error {error.strerror}", flush=True)
        sys.exit(1)
