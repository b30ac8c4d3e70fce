"""All ranks of a dry run, each represented by a rank that ran.

Ranks of one pipeline stage run the same program. A rank's groups follow from its place in fleet's mesh: in a
group of the same kind, it has the calls of its representative. Two groups are of the same kind if they have
as many places on each axis of the mesh and the same stages; the k-th group of a kind that contains a rank
corresponds to the k-th of that kind that contains its representative, in the order of creation.

Importing this module imports no framework.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from llm_npu.core.errors import UserError

from .calls import Call, Group, RankCalls

PIPELINE = "pipe"  # fleet's name of the axis
USES = {  # the trainer's names of groups (``features.StepMarks``)
    "tp": "tensor", "pp": "pipeline", "sharding": "sharding", "dp": "data", "sep": "context",
    "experts": "expert",
}  # fmt: skip
AXES = {"model": "tensor", "pipe": "pipeline", "sharding": "sharding", "data": "data", "sep": "context"}
OTHER = "other"
Kind = tuple[tuple[int, ...], tuple[int, ...]]  # places on each axis, stages


@dataclass(frozen=True)
class GroupRank:
    """A rank in a group: whose calls it makes, in which group of that rank."""

    rank: int
    representative: int
    group: int  # of the representative


class World:
    """The ranks, their representatives and groups.

    Args:
        ran: The ranks that ran, in order.

    Raises UserError if the ranks that ran disagree on the mesh, or if no rank ran for a stage.
    """

    def __init__(self, ran: Sequence[RankCalls]):
        self.ran = {rank.rank: rank for rank in ran}
        first = ran[0]
        for other in ran[1:]:
            if other.mesh != first.mesh:
                raise UserError(
                    f"The journals are of different runs: the mesh of rank {first.rank} is {first.mesh}, "
                    f"that of rank {other.rank} is {other.mesh}. Use the journals of one run."
                )
        self.groups: dict[int, Group] = {}
        for rank in ran:
            for number, group in rank.groups.items():
                if number not in self.groups or rank.rank in group.ranks:
                    self.groups[number] = group
        every = max((max(group.ranks) for group in self.groups.values()), default=0) + 1
        self._members: dict[int, list[GroupRank] | None] = {}
        self.mesh = first.mesh or {"ranks": every}
        self.count = max(every, math.prod(self.mesh.values()))

    @cached_property
    def places(self) -> list[tuple[int, ...]]:
        """The place of each rank on the axes of the mesh."""
        places = []
        for rank in range(self.count):
            place: list[int] = []
            for degree in reversed(self.mesh.values()):
                rank, at = divmod(rank, degree)
                place.insert(0, at)
            places.append(tuple(place))
        return places

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of a rank."""
        axes = list(self.mesh)
        return self.places[rank][axes.index(PIPELINE)] if PIPELINE in axes else 0

    @cached_property
    def representatives(self) -> list[int]:
        """The rank that ran for each rank: itself, or the first of its stage."""
        of_stage: dict[int, int] = {}
        for rank in self.ran:
            of_stage.setdefault(self.stage_of(rank), rank)
        missing = sorted({self.stage_of(rank) for rank in range(self.count)} - of_stage.keys())
        if missing:
            raise UserError(
                f"The journals of ranks {sorted(self.ran)} have none of stage {missing[0]} of the pipeline. "
                "Use the journals of all ranks that ran."
            )
        return [rank if rank in self.ran else of_stage[self.stage_of(rank)] for rank in range(self.count)]

    def kind(self, ranks: Iterable[int]) -> Kind:
        """The kind of a group: how many places it has on each axis, and its stages."""
        places = [self.places[rank] for rank in ranks]
        return (
            tuple(len(set(axis)) for axis in zip(*places, strict=True)),
            tuple(sorted({self.stage_of(rank) for rank in ranks})),
        )

    @cached_property
    def _roles(self) -> list[dict[int, tuple[Kind, int]]]:
        """For each rank, the kind and the position among its groups of that kind, by group."""
        roles: list[dict[int, tuple[Kind, int]]] = [{} for _ in range(self.count)]
        seen: list[dict[Kind, int]] = [defaultdict(int) for _ in range(self.count)]
        for number in sorted(self.groups):
            ranks = self.groups[number].ranks
            kind = self.kind(ranks)
            for rank in ranks:
                roles[rank][number] = kind, seen[rank][kind]
                seen[rank][kind] += 1
        return roles

    @cached_property
    def _by_role(self) -> dict[int, dict[tuple[Kind, int], int]]:
        return {rank: {role: number for number, role in self._roles[rank].items()} for rank in self.ran}

    def members(self, number: int) -> list[GroupRank] | None:
        """The members of a group in the order of the group; None if a representative has no such group."""
        if number in self._members:
            return self._members[number]
        members: list[GroupRank] | None = []
        for rank in self.groups[number].ranks:
            representative = self.representatives[rank]
            own = self._by_role[representative].get(self._roles[rank][number])
            if own is None:
                members = None
                break
            members.append(GroupRank(rank, representative, own))
        self._members[number] = members
        return members

    def peer(self, members: Sequence[GroupRank], position: int, call: Call) -> int:
        """The position of a transfer's peer: as far from the member as it is from its representative."""
        member = members[position]
        own = self.groups[member.group].ranks.index(member.representative)
        return (position + call.peer - own) % len(members)

    @cached_property
    def calls(self) -> dict[int, dict[int | str, list[Call]]]:
        """The calls of each rank that ran, by group."""
        calls: dict[int, dict[int | str, list[Call]]] = {}
        for rank, journal in self.ran.items():
            calls[rank] = defaultdict(list)
            for call in journal.calls:
                calls[rank][call.group].append(call)
        return calls

    def use(self, number: int | str, rank: int) -> str:
        """The purpose of a group of ``rank``, such as "tensor": as the trainer says, else by its axes."""
        if number in (uses := self.ran[rank].uses):
            return USES.get(uses[number], uses[number])
        if number not in self.groups:
            return OTHER
        places, _ = self.kind(self.groups[number].ranks)
        varying = [axis for axis, count in zip(self.mesh, places, strict=True) if count > 1]
        return AXES.get(varying[0], OTHER) if len(varying) == 1 else OTHER
