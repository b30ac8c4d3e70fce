"""When a machine is lost, all other ranks exit within 10 seconds with code 75 and name the machine.

    with watch_machines():
        ...                      # everything that the ranks do together

Paddle's launcher does not watch other machines, and a collective on a card waits for HCCL_EXEC_TIMEOUT.
Therefore a process next to each rank exchanges heartbeats with rank 0's machine (``heartbeat``). A run on one
machine starts no such process and opens no port.

Importing this module imports no framework.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from llm_npu.core import errors, machines
from llm_npu.core.errors import UserError
from llm_npu.launch import heartbeat

# Seconds until the answer to check_alive, and until the process exits after goodbye.
ALIVE_TIMEOUT = (heartbeat.TIMEOUT + 4) * heartbeat.INTERVAL
GOODBYE_TIMEOUT = (heartbeat.JOIN_TIMEOUT + heartbeat.DRAIN + 4) * heartbeat.INTERVAL
MAX_ERROR = 400  # characters of an error; Paddle's errors have their cause at the end


@contextlib.contextmanager
def watch_machines() -> Iterator[None]:
    """Within the context, this rank exits when another machine is lost; no-op in a run on one machine.

    An error inside may be the first sign of a lost machine: it is re-raised once all other machines are known
    to be alive. Raises UserError if rank 0's endpoint is in use, and for an invalid run secret.
    """
    run = machines.read()
    if len(run.all) == 1:
        yield
        return
    process = _HeartbeatProcess(run.rank, os.environ["PADDLE_TRAINER_ENDPOINTS"].split(","))
    try:
        yield
    except errors.ErrorOfAllRanks:
        process.goodbye()  # all ranks exit with this error, so none counts as lost
        raise
    except Exception as error:
        process.report(error)
        if not errors.is_for_the_user(error):
            process.check_alive()
        raise
    process.goodbye()


class _HeartbeatProcess:
    """The process that sends this rank's heartbeats, and the thread that reads its output."""

    def __init__(self, rank: int, endpoints: list[str]):
        package = Path(heartbeat.__file__).parent
        program = f"import sys; sys.path.append(sys.argv[1]); from {package.name}.process import main; main()"
        command = [sys.executable, "-IB", "-c", program, str(package.parent)]
        command += [str(os.getpid()), str(rank), *endpoints]
        # The secret is in the environment, because all users can read the arguments of a process.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, machines.SECRET: machines.secret()},
        )
        line = self._process.stdout.readline().strip()
        if line != "ready":
            reason = line.removeprefix("endpoint_error ")
            raise UserError(
                f"rank 0 cannot listen on its endpoint {endpoints[0]} ({reason}); "
                "start the run again: the launcher then chooses another port"
            )
        self._alive, self._done = threading.Event(), False
        threading.Thread(target=self._read, daemon=True, name="heartbeat").start()

    def check_alive(self) -> None:
        """Return when all other ranks are known to be alive; does not return if one is lost."""
        self._send("check_alive")
        self._alive.wait(ALIVE_TIMEOUT)

    def report(self, error: Exception) -> None:
        """Report that this rank is about to exit with ``error``, for the other machines' logs."""
        text = str(error) if errors.is_for_the_user(error) else f"{type(error).__name__}: {error}"
        line = " ".join(text.split())
        self._send(f"error {line if len(line) <= MAX_ERROR else f'... {line[-MAX_ERROR:]}'}")

    def goodbye(self) -> None:
        """Report that this rank's work is complete, so its exit (or its container's) is not a loss.

        Returns when the coordinator has acknowledged it. Rank 0, whose process runs the coordinator, returns
        when all ranks are done, or after ``DRAIN`` intervals.
        """
        self._done = True
        self._send("goodbye")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GOODBYE_TIMEOUT)

    def _send(self, command: str) -> None:
        with contextlib.suppress(OSError):  # the process was killed; _read ends this rank
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        for line in self._process.stdout:
            kind, _, code = line.strip().partition(" ")
            if kind == "abort":
                os._exit(int(code))
            self._alive.set()
            self._done = self._done or kind == "shutdown"  # no longer watched from here on
        if not self._done:
            os.write(2, b"error: the heartbeat process of this rank was killed, so the run ends.\n")
            os._exit(heartbeat.EXIT_LOST)
