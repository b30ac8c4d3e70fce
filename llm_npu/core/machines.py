"""The machines of a run, as its launcher names them in the environment of each rank.

``paddle.distributed.launch`` gives every rank the endpoints (address:port) of all ranks. Those of one
machine have one address and follow each other. Importing this module imports no framework.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import NamedTuple


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
        """The first group of ``size`` consecutive ranks that is on several machines, or None."""
        for machine in self.all[:-1]:
            end = machine.ranks.stop
            if end % size:
                return range(end - end % size, end - end % size + size)
        return None


def read(environment: Mapping[str, str] = os.environ) -> Machines:
    """The machines of this run; one machine with rank 0 where no launcher has started this process."""
    endpoints = environment.get("PADDLE_TRAINER_ENDPOINTS", "").split(",")
    addresses = [endpoint.rpartition(":")[0] for endpoint in endpoints]
    found, first = [], 0
    for address, same in itertools.groupby(addresses):
        ranks = range(first, first := first + len(list(same)))
        found.append(Machine(address, ranks))
    return Machines(tuple(found), int(environment.get("PADDLE_TRAINER_ID") or 0))
