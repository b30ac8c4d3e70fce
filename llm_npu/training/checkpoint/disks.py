"""Detects which ranks see the same folder: all ranks, or only the ranks of one machine.

The first rank of every machine creates an entry in the folder, and every rank checks which entries it sees.
This is measured because a setting could be wrong; some machines may share a disk while others have separate
disks.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from llm_npu.core import machines
from llm_npu.core.atomic import unfinished
from llm_npu.core.errors import ErrorOfAllRanks
from llm_npu.core.ranks import Ranks


@dataclass(frozen=True)
class Disks:
    """The disk of each rank.

    Attributes:
        of_rank: For each of ``ranks``, the first rank that sees the same disk.
    """

    of_rank: tuple[int, ...]
    ranks: Ranks

    @classmethod
    def shared(cls, ranks: Ranks) -> Disks:
        """A single disk shared by all ``ranks``."""
        return cls((0,) * ranks.size, ranks)

    @classmethod
    def of(cls, folder: Path, ranks: Ranks) -> Disks:
        """Detect the disks of ``folder``, which is created if necessary. Collective; no-op on one machine.

        Raises OSError if a machine cannot write there, and UserError if ranks of one machine see different
        folders.
        """
        here = machines.read()
        if len(here.all) == 1:
            return cls.shared(ranks)
        entry = None
        with ExitStack() as stack:
            with ranks.raise_on_all_ranks():
                if here.is_first_rank_of_machine:
                    entry = stack.enter_context(unfinished(folder / f"probe-{here.rank}")).name
            entries = ranks.gather(entry)
            seen = tuple(machine.ranks[0] for machine in here.all if _sees(folder, entries, machine))
            views = ranks.gather(seen)  # the entries are no longer needed
        for machine in here.all:
            for rank in machine.ranks:
                if machine.ranks[0] not in views[rank] or views[rank] != views[views[rank][0]]:
                    raise ErrorOfAllRanks(
                        f"rank {rank} on {machine} does not see the {folder} of rank {machine.ranks[0]}; "
                        "specify a folder that all ranks of a machine share."
                    )
        return cls(tuple(view[0] for view in views), ranks)

    @classmethod
    def to_read(cls, folder: Path, ranks: Ranks) -> Disks:
        """Assume the disks of a ``folder`` that may be missing or read-only. Collective.

        A shared folder cannot be detected without writing; assuming one disk per machine is safe for reading.
        """
        if not any(ranks.gather(folder.is_dir())):
            return cls.shared(ranks)
        try:
            return cls.of(folder, ranks)
        except OSError:
            disks = [machine.ranks[0] for machine in machines.read().all for _ in machine.ranks]
            return cls(tuple(disks), ranks)

    @property
    def own(self) -> int:
        """The disk of this rank."""
        return self.of_rank[self.ranks.rank]

    @property
    def first(self) -> bool:
        """Whether this is the first rank of its disk, which acts for the disk's other ranks."""
        return self.own == self.ranks.rank

    @property
    def all(self) -> list[int]:
        """The disks, in the order of their first ranks."""
        return sorted(set(self.of_rank))

    @property
    def several(self) -> bool:
        return len(self.all) > 1

    @property
    def members(self) -> list[int]:
        """The ranks of this rank's disk."""
        return [rank for rank, disk in enumerate(self.of_rank) if disk == self.own]

    def share(self, items: list) -> list:
        """This rank's share of its disk's ``items``."""
        members = self.members
        return items[members.index(self.ranks.rank) :: len(members)]

    def from_first(self, value):
        """Broadcast the value of the first rank of this disk. Collective."""
        return self.ranks.gather(value if self.first else None)[self.own]


def _sees(folder: Path, entries: list[str | None], machine: machines.Machine) -> bool:
    return (folder / str(entries[machine.ranks[0]])).is_dir()
