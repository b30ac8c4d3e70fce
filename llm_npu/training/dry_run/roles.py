"""Peak memory and traffic of each role of a dry run: the ranks that one rank represents.

Importing this module imports no framework.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

from llm_npu.report.table import Table

from .calls import RECEIVE
from .world import OTHER, USES, World

MIB = 2**20


@dataclass(frozen=True)
class Role:
    """A role.

    Attributes:
        name: "stage 1", or "all ranks".
        representative: The rank that ran.
        ranks: The number of ranks with this role.
        peak_bytes: Peak bytes of all tensors of the device.
        bytes_per_step: Bytes of the whole tensors that a rank communicates in the last step, by the use of
            the group; transfers count once, where they are sent.
    """

    name: str
    representative: int
    ranks: int
    peak_bytes: int
    bytes_per_step: dict[str, int]

    def as_json(self) -> dict:
        return asdict(self)


def roles(world: World) -> list[Role]:
    """The roles in the order of their representatives."""
    counts = Counter(world.representatives)
    several = len(world.ran) > 1
    return [
        Role(
            f"stage {world.stage_of(rank)}" if several else "all ranks",
            rank,
            counts[rank],
            journal.peak or 0,
            _traffic(world, rank),
        )
        for rank, journal in world.ran.items()
    ]


def _traffic(world: World, rank: int) -> dict[str, int]:
    calls = world.ran[rank].calls
    last = max((call.in_step for call in calls), default=0)
    sums: Counter[str] = Counter()
    for call in calls:
        if last and call.in_step == last and call.kind != RECEIVE:
            whole = call.ranks if call.kind in ("all_gather", "reduce_scatter") else 1
            sums[world.use(call.group, rank)] += call.bytes * whole
    return dict(sums)


def table(rows: list[Role]) -> Table:
    """Peak memory, and traffic of the last step by the use of the group, in MiB."""
    known = [*USES.values(), OTHER]
    present = {use for row in rows for use in row.bytes_per_step}
    uses = [use for use in known if use in present] + sorted(present - set(known))
    body = [
        [
            f"{row.name} (rank {row.representative})",
            str(row.ranks),
            f"{row.peak_bytes / MIB:,.0f}",
            *(f"{row.bytes_per_step.get(use, 0) / MIB:,.0f}" for use in uses),
        ]
        for row in rows
    ]
    return Table(
        "memory and communication of each role, in MiB",
        ["role", "ranks", "peak memory", *uses],
        body,
        remark="communication: whole tensors in the last step; a transfer counts for its sender",
    )
