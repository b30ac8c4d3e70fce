"""A lost machine ends the ranks of all others within 10 seconds, with its name and exit code 75.

    with watch_machines():
        ...                      # everything that the ranks do together

Paddle's launcher notices nothing of other machines, and a collective on a card waits for HCCL_EXEC_TIMEOUT.
So a process beside each rank exchanges beats with the first machine (``beats``). A run on one machine has
none, and listens nowhere.

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
from llm_npu.launch import beats

ANSWER = (beats.SILENT + 4) * beats.TICK  # seconds: by then somebody counts as lost
GOODBYE = (beats.START + beats.LINGER + 4) * beats.TICK  # seconds: by then the process has ended
LONGEST = 400  # characters of an error; the cause stands last in those of Paddle


@contextlib.contextmanager
def watch_machines() -> Iterator[None]:
    """Inside, this rank ends when a machine of the run is lost; nothing happens in a run on one machine.

    An error inside may be the first sign of a loss: it is raised again when all other machines are known to
    be there. UserError if the first machine's address cannot be listened on, and for a bad run secret.
    """
    run = machines.read()
    if len(run.all) == 1:
        yield
        return
    beat = _Beat(run.rank, os.environ["PADDLE_TRAINER_ENDPOINTS"].split(","))
    try:
        yield
    except errors.ErrorOfAllRanks:
        beat.leave()  # as after the last step: the first rank to end is not missed
        raise
    except Exception as error:
        beat.tell(error)
        if not errors.is_for_the_user(error):
            beat.ask()
        raise
    beat.leave()


class _Beat:
    """The process that beats for this rank, and the thread that listens to it."""

    def __init__(self, rank: int, endpoints: list[str]):
        package = Path(beats.__file__).parent
        program = f"import sys; sys.path.append(sys.argv[1]); from {package.name}.process import main; main()"
        command = [sys.executable, "-IB", "-c", program, str(package.parent)]
        command += [str(os.getpid()), str(rank), *endpoints]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={
                **os.environ,
                machines.SECRET: machines.secret(),
            },  # no argument: those are for all to see
        )
        word = self._process.stdout.readline().strip()
        if word != "ready":
            raise UserError(
                f"rank 0 cannot listen on its endpoint {endpoints[0]} ({word.removeprefix('taken: ')}); "
                "start the run again: the launcher then chooses another port."
            )
        self._answered, self._left = threading.Event(), False
        threading.Thread(target=self._listen, daemon=True, name="heartbeat").start()

    def ask(self) -> None:
        """Return when all other ranks are known to live; does not return if one is lost."""
        self._say("question")
        self._answered.wait(ANSWER)

    def tell(self, error: Exception) -> None:
        """The rank is about to end with ``error``, which the logs of the other machines will say, too."""
        words = str(error) if errors.is_for_the_user(error) else f"{type(error).__name__}: {error}"
        line = " ".join(words.split())
        self._say(line if len(line) <= LONGEST else f"... {line[-LONGEST:]}")

    def leave(self) -> None:
        """The work of this rank is done: its end, which may take a container with it, is no loss.

        Return when the hub knows; rank 0, beside which the hub runs, when all are done, or after ``LINGER``
        ticks.
        """
        self._left = True
        self._say("bye")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GOODBYE)

    def _say(self, word: str) -> None:
        with contextlib.suppress(OSError):  # it has been killed, and its end ends this rank
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        for line in self._process.stdout:
            word, _, code = line.strip().partition(" ")
            if word == "end":
                os._exit(int(code))
            self._answered.set()
            self._left = self._left or word == "over"  # nobody watches from here on
        if not self._left:
            os.write(2, b"error: the process that beats for this rank has been killed, so the run ends.\n")
            os._exit(beats.LOST)
