"""The machines of a run, as set by the launcher in the environment of each rank.

``paddle.distributed.launch`` passes the endpoints (address:port) of all ranks to every rank. The endpoints of
one machine share an address and are contiguous. A run can have a secret that is shared by all its machines.
Importing this module imports no framework.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from llm_npu.core.errors import UserError

SECRET, SECRET_FILE = "LLM_NPU_RUN_SECRET", "LLM_NPU_RUN_SECRET_FILE"
SHORTEST, LONGEST = 16, 4096  # characters: a short secret can be guessed
HOW_TO_MAKE_ONE = "make one by `openssl rand -hex 16`"
COUNT, RANK = "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID"
ENDPOINTS, OWN_ENDPOINT = "PADDLE_TRAINER_ENDPOINTS", "PADDLE_CURRENT_ENDPOINT"
OF_RANK = (
    *(COUNT, RANK, ENDPOINTS, OWN_ENDPOINT, "PADDLE_LOCAL_SIZE", "PADDLE_GLOBAL_SIZE", "PADDLE_LOCAL_RANK"),
    *("PADDLE_RANK_IN_NODE", "PADDLE_GLOBAL_RANK"),
)


class Machine(NamedTuple):
    """One machine of a run: its IPv4 ``address`` and the ``ranks`` on it."""

    address: str
    ranks: range

    def __str__(self) -> str:
        first, last = self.ranks[0], self.ranks[-1]
        return f"{self.address} ({f'rank {first}' if first == last else f'ranks {first} to {last}'})"


class Machines(NamedTuple):
    """All machines of a run, in the order of their ranks, and this process's ``rank``."""

    all: tuple[Machine, ...]
    rank: int

    @property
    def own(self) -> Machine:
        return next(machine for machine in self.all if self.rank in machine.ranks)

    @property
    def is_first_rank_of_machine(self) -> bool:
        return self.rank == self.own.ranks[0]

    def crossed_by(self, size: int) -> range | None:
        """The first group of ``size`` consecutive ranks that spans several machines, or None."""
        for machine in self.all[:-1]:
            end = machine.ranks.stop
            if end % size:
                return range(end - end % size, end - end % size + size)
        return None


def read(environment: Mapping[str, str] = os.environ) -> Machines:
    """The machines of this run; without a launcher, one machine with rank 0."""
    endpoints = environment.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")
    addresses = [endpoint.rpartition(":")[0] for endpoint in endpoints]
    all_machines, first = [], 0
    for address, same in itertools.groupby(addresses):
        ranks = range(first, first := first + len(list(same)))
        all_machines.append(Machine(address, ranks))
    return Machines(tuple(all_machines), int(environment.get("PADDLE_TRAINER_ID") or 0))


def secret(environ: Mapping[str, str] = os.environ) -> str:
    """The secret in ``SECRET``, or in the file named by ``SECRET_FILE``; "" if neither is set.

    Raises UserError if both are set, if the secret is too short, or if other users can read the file.
    """
    text, file = environ.get(SECRET, ""), environ.get(SECRET_FILE, "")
    if text and file:
        raise UserError(f"{SECRET} and {SECRET_FILE} are both set; set one of them")
    name = SECRET
    if file:
        text, name = _content(Path(os.path.expanduser(file))), f"{SECRET_FILE}: {file}"
    if (text or file) and not (SHORTEST <= len(text) <= LONGEST and text.isprintable()):
        raise UserError(
            f"{name} has {len(text)} characters; accepted: {SHORTEST} to {LONGEST} printable ones on one "
            f"line ({HOW_TO_MAKE_ONE})"
        )
    return text


def _content(file: Path) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # opening a FIFO would block
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{SECRET_FILE} is {str(file)!r}, which cannot be read: {why}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        content = os.read(descriptor, LONGEST + 2) if stat.S_ISREG(mode) else b""
    finally:
        os.close(descriptor)
    if not stat.S_ISREG(mode):
        raise UserError(f"{SECRET_FILE} is {file}, which is not a file; accepted: a text file of one line")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(
            f"{SECRET_FILE} is {file}, which other users may read or write; run `chmod 600 {file}` first"
        )
    return content.decode("utf-8", "replace").rstrip("\r\n")


def check(environment: Mapping[str, str] = os.environ) -> int:
    """The number of ranks of this run; 1 without a launcher.

    Raises UserError if the launcher's variables are inconsistent, such as leftovers of another run in a
    shell.
    """
    ranks, rank = _number(environment, COUNT, 1), _number(environment, RANK, 0)
    local = _number(environment, "PADDLE_LOCAL_SIZE", 1)
    endpoints = list(filter(None, environment.get(ENDPOINTS, "").split(",")))
    own = environment.get(OWN_ENDPOINT) or (endpoints[rank] if rank < len(endpoints) else "")
    if rank >= ranks:
        raise _left_over(environment, f"{RANK} is {rank}, but {COUNT} is {environment.get(COUNT, 'not set')}")
    if ranks > 1 and not environment.get(RANK):
        raise _left_over(environment, f"{COUNT} is {ranks}, but {RANK} is not set")
    if len(endpoints) != ranks and (endpoints or ranks > 1):
        raise _left_over(environment, f"{COUNT} is {ranks}, but {ENDPOINTS} has {len(endpoints)}")
    if local > ranks:
        raise _left_over(environment, f"PADDLE_LOCAL_SIZE is {local}, but {COUNT} is {ranks}")
    if endpoints and own != endpoints[rank]:
        raise _left_over(
            environment,
            f"{OWN_ENDPOINT} is {own:.60}, but {ENDPOINTS} has {endpoints[rank]:.60} for rank {rank}",
        )
    return ranks


def _number(environment: Mapping[str, str], name: str, absent: int) -> int:
    text = environment.get(name) or str(absent)
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise _left_over(environment, f"{name} is {text!r:.40}, which is not a number")
    return int(text)


def _left_over(environment: Mapping[str, str], contradiction: str) -> UserError:
    names = " ".join(name for name in OF_RANK if name in environment)
    return UserError(
        f"{contradiction}: the variables of paddle.distributed.launch are inconsistent. "
        f"Remove them from the shell with: unset {names}"
    )
