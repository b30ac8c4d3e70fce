"""Runs a program on several ranks of the virtual NPU, each a process of its own.

The processes are started here with the variables that ``paddle.distributed.launch`` gives to them, and not
through it: it would end the whole job when one rank dies, which is what some tests are about, and it takes
seconds to start.

A program gets the folder as its first argument and hands its findings over with ``write``; tests/shared, its
own folder and the one that this stands in are on its sys.path::

    import ranks
    ranks.write({"loss": loss})
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from places import SHARED

import paddle_fused

SOURCES = (str(Path(paddle_fused.__file__).resolve().parents[1]), str(SHARED))
GRACE = 15  # seconds that the other ranks have to end by themselves once one has failed
TIMEOUT = 600  # seconds, for programs that hang: a slow and busy machine needs a tenth of them


def run(
    program: Path,
    n: int,
    folder: Path,
    *arguments,
    timeout: float = TIMEOUT,
    may_die: tuple[int, ...] = (),
    **environment: str | None,
) -> list[dict | None]:
    """What each of ``n`` ranks of ``python program folder arguments...`` wrote, in the order of the ranks.

    ``environment`` is added to this process's, in which the virtual NPU must be active; None takes a variable
    out. Ranks in ``may_die`` may end in any way, and are killed when all others have ended; their place holds
    None if they wrote nothing. AssertionError, with the end of every log, if another rank fails, writes
    nothing, or takes longer than ``timeout`` seconds. No process outlives the call.
    """
    with started(program, n, folder, *arguments, **environment) as processes:
        needed = {rank: process for rank, process in enumerate(processes) if rank not in may_die}
        problem = _wait(needed, timeout)
    reports = [_read(_report(folder, rank)) for rank in range(n)]
    silent = [rank for rank in needed if reports[rank] is None]
    if not problem and silent:
        problem = f"rank {silent[0]} wrote no findings"
    assert not problem, f"{program.name} on {n} ranks: {problem}\n{_logs(folder, n)}"
    return reports


@contextmanager
def started(
    program: Path, n: int, folder: Path, *arguments, **environment: str | None
) -> Iterator[list[subprocess.Popen]]:
    """The processes that `run` waits for, each writing to FOLDER/<rank>.log; none outlives the block."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(n):
        _report(folder, rank).unlink(missing_ok=True)
    with ExitStack() as stack:
        endpoints = stack.enter_context(_endpoints(n + 1))
        processes = []
        for rank, variables in enumerate(_environments(program, n, endpoints, environment)):
            log = stack.enter_context(_log(folder, rank).open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", str(program), str(folder), *map(str, arguments)],
                env=variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that what the rank has started ends with it
            )
            stack.callback(_end, process)
            processes.append(process)
        yield processes


def write(record: dict) -> None:
    """For the program: hands ``found``, which JSON must be able to say, to the test that runs it."""
    report = _report(Path(sys.argv[1]), int(os.environ["PADDLE_TRAINER_ID"]))
    fresh = report.with_suffix(".new")
    fresh.write_text(json.dumps(record))
    fresh.replace(report)  # a rank that is killed while it writes has written nothing


def _environments(
    program: Path, n: int, endpoints: list[str], changes: dict[str, str | None]
) -> list[dict[str, str]]:
    """The environment of each rank; ``endpoints`` are the store's address and one for each."""
    search_path = [
        *SOURCES,
        str(program.parent.parent),
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    job = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(search_path)),
        "VIRTUAL_NPU_DEVICES": str(max(8, n)),
    }
    master, *endpoints = endpoints
    all_ranks = [
        {
            **job,
            "FLAGS_selected_npus": str(rank),
            "PADDLE_DISTRI_BACKEND": "xccl",
            "PADDLE_XCCL_BACKEND": "npu",
            "PADDLE_MASTER": master,
            "PADDLE_NNODES": "1",
            "PADDLE_GLOBAL_SIZE": str(n),
            "PADDLE_LOCAL_SIZE": str(n),
            "PADDLE_TRAINERS_NUM": str(n),
            "PADDLE_GLOBAL_RANK": str(rank),
            "PADDLE_LOCAL_RANK": str(rank),
            "PADDLE_RANK_IN_NODE": str(rank),
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_CURRENT_ENDPOINT": endpoints[rank],
            **changes,
        }
        for rank in range(n)
    ]
    return [{name: value for name, value in report.items() if value is not None} for report in all_ranks]


@contextmanager
def _endpoints(count: int) -> Iterator[list[str]]:
    """Addresses on this host, the first of which nobody else is given inside the block.

    That is the store's. The ranks need seconds to get to it; until then a socket is bound to the port, that
    does not listen: the store can be bound beside it, since both say SO_REUSEADDR. The others are used by
    what is tested as a defect only, and by sockets of Paddle that say SO_REUSEPORT, too.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", 0))
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]
        for listener in sockets[1:]:
            listener.close()
        yield addresses


def _wait(processes: dict[int, subprocess.Popen], timeout: float) -> str:
    """Waits for the end of all; what went wrong first, or nothing."""
    end, problem = time.monotonic() + timeout, ""
    while any(process.poll() is None for process in processes.values()) and time.monotonic() < end:
        for rank, process in processes.items():
            if not problem and process.poll():
                problem = f"rank {rank} ended with {process.returncode}"
                end = min(end, time.monotonic() + GRACE)
        time.sleep(0.05)
    running = [rank for rank, process in processes.items() if process.poll() is None]
    failed = [rank for rank, process in processes.items() if process.poll()]
    if problem:
        return problem
    if running:
        return f"rank {running[0]} has not ended within {timeout} s"
    return f"rank {failed[0]} ended with {processes[failed[0]].returncode}" if failed else ""


def _end(process: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):  # the rank has ended, and with it whatever it had started
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _log(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.log"


def _report(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.json"


def _read(report: Path) -> dict | None:
    return json.loads(report.read_text()) if report.exists() else None


def _logs(folder: Path, n: int) -> str:
    texts = [_log(folder, rank).read_text(errors="replace")[-4000:] for rank in range(n)]
    return "\n".join(f"---- rank {rank} ----\n{text}" for rank, text in enumerate(texts))
