"""Matches the collectives of all ranks of a dry run. A rank that ran represents each of them.

    match(world).summary()

In every group of the run, all ranks must make the same collectives: order, kind, size, dtype, reduction and
root. Sends must match the receives of their peers in the same way, and the parts of an all-to-all what the
other side expects. The first difference raises ``Mismatch`` with the calls and lines of both sides.

Groups whose members have the same representatives and the same calls are compared once, so the time does not
grow with the number of ranks but with that of different groups.

Importing this module imports no framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from . import deadlock
from .calls import ALL_TO_ALL, RECEIVE, SEND, UNKNOWN_PART, Call
from .world import GroupRank, World

SAME = "All ranks of a group must make the same calls in the same order."
SHOWN = 8  # ranks of a group


class Mismatch(Exception):
    """Ranks make calls that do not match, or wait for each other."""


@dataclass(frozen=True)
class Matched:
    """What was compared.

    Attributes:
        ranks, ran: all ranks, and those that ran.
        groups: groups with calls.
        calls: calls of all ranks in them.
        unchecked: groups with a member whose representative is in no group of that kind.
        unnamed: calls of ranks that ran in groups that ``paddle.distributed`` does not list.
    """

    ranks: int
    ran: int
    groups: int
    calls: int
    unchecked: int
    unnamed: int

    def summary(self) -> str:
        text = f"{self.calls:,} collectives of {self.ranks:,} ranks in {self.groups:,} groups match"
        text += f"; {self.unchecked:,} groups are not represented" if self.unchecked else ""
        return text + (f"; {self.unnamed:,} calls are in groups of unknown ranks" if self.unnamed else "")


def match(world: World) -> Matched:
    """Compare the calls of all ranks. Raises Mismatch at the first difference."""
    _same_groups(world)
    compared: set[tuple[tuple[int, int], ...]] = set()
    groups = calls = unchecked = 0
    for number in sorted(world.groups):
        members = world.members(number)
        if members is None:
            unchecked += 1
            continue
        lists = [world.calls[member.representative].get(member.group, []) for member in members]
        if not any(lists):
            continue
        groups += 1
        calls += sum(map(len, lists))
        key = tuple((member.representative, member.group) for member in members)
        if key not in compared:
            compared.add(key)
            _collectives(world, number, members, lists)
            _transfers(world, number, members, lists)
    if cycle := deadlock.cycle(world):
        raise Mismatch(cycle)
    unnamed = sum(call.group not in world.groups for rank in world.ran.values() for call in rank.calls)
    return Matched(world.count, len(world.ran), groups, calls, unchecked, unnamed)


def _same_groups(world: World) -> None:
    """Raise Mismatch if a group's number stands for different ranks on two of the ranks that ran."""
    for rank, journal in world.ran.items():
        for number, group in journal.groups.items():
            first, other = next((r, j.groups[number]) for r, j in world.ran.items() if number in j.groups)
            if other.ranks != group.ranks:
                raise Mismatch(
                    f"Ranks create different groups: group {number} is {_ranks(other.ranks)} on rank {first}"
                    f"{_at(other.line)} and {_ranks(group.ranks)} on rank {rank}{_at(group.line)}. All ranks "
                    "must create all groups in the same order, also groups without them."
                )


def _collectives(world: World, number: int, members: Sequence[GroupRank], lists: list[list[Call]]) -> None:
    whole = [[call for call in calls if not call.is_transfer] for calls in lists]
    compared = {members[0].representative}
    for position, member in enumerate(members):
        if member.representative in compared:
            continue
        compared.add(member.representative)
        for count, (call, other) in enumerate(zip_longest(whole[0], whole[position]), 1):
            if call is None or other is None or not _same(call, other):
                sides = ((members[0], call), (member, other))
                words = "; ".join(_side(world, number, *side, count) for side in sides)
                where = _group(world, number, members)
                raise Mismatch(f"The ranks of {where} make different calls: {words}. {SAME}")
    _all_to_alls(world, number, members, whole)


def _same(call: Call, other: Call) -> bool:
    return _signature(call) == _signature(other)


def _signature(call: Call) -> tuple:
    return call.kind, call.dtype, call.reduce, call.peer, None if call.sent else call.elements


def _all_to_alls(world: World, number: int, members: Sequence[GroupRank], whole: list[list[Call]]) -> None:
    """Raise Mismatch if a rank that ran receives another number of elements than its peers send to it.

    The parts that a rank sends are known by the receivers' positions, so those of a rank that did not run
    are its representative's.
    """
    for to, member in enumerate(members):
        if member.rank != member.representative:
            continue
        for count, call in enumerate(whole[to], 1):
            if call.kind != ALL_TO_ALL or not call.received:
                continue
            for source, calls in enumerate(whole):
                sender = calls[count - 1]
                if sender.sent and _differ(sender.sent[to], call.received[source]):
                    where = _group(world, number, members)
                    raise Mismatch(
                        f"The ranks of {where} disagree on the parts of an all_to_all: "
                        f"{_name(members[source])} sends {sender.sent[to]} to {_name(member)} in "
                        f"{sender.describe(count)}, which expects {call.received[source]} in "
                        f"{call.describe(count)}."
                    )


def _differ(sent: int, received: int) -> bool:
    return UNKNOWN_PART not in (sent, received) and sent != received


def _transfers(world: World, number: int, members: Sequence[GroupRank], lists: list[list[Call]]) -> None:
    """Raise Mismatch if a send and the receive of its peer differ."""
    ends: dict[tuple[int, int], tuple[list[Call], list[Call]]] = {}  # (from, to): sends, receives
    for position, calls in enumerate(lists):
        for call in calls:
            if call.is_transfer:
                peer = world.peer(members, position, call)
                key = (position, peer) if call.kind == SEND else (peer, position)
                ends.setdefault(key, ([], []))[call.kind == RECEIVE].append(call)
    for (source, to), (sends, receives) in ends.items():
        for count, (send, receive) in enumerate(zip_longest(sends, receives), 1):
            if send and receive and (send.dtype, send.elements) == (receive.dtype, receive.elements):
                continue
            peers = {SEND: members[to].rank, RECEIVE: members[source].rank}
            words = [
                _transfer(members[position], kind, call, count, peers[kind])
                for position, kind, call in ((source, SEND, send), (to, RECEIVE, receive))
            ]
            raise Mismatch(
                f"The two ends of a transfer differ, in {_group(world, number, members)}: "
                f"{'; '.join(words)}. Sends and receives must agree in dtype, size and order."
            )


def _transfer(member: GroupRank, kind: str, call: Call | None, count: int, peer: int) -> str:
    if call is None:
        return (
            f"{_name(member)} makes no {kind} {'to' if kind == SEND else 'from'} rank {peer} (call {count})"
        )
    return f"{_name(member)} calls {call.describe(count, peer)}"


def _side(world: World, number: int, member: GroupRank, call: Call | None, count: int) -> str:
    if call is None:
        return f"{_name(member)} makes no call {count}"
    root = world.groups[number].ranks[call.peer] if call.kind in ("broadcast", "reduce") else None
    return f"{_name(member)} calls {call.describe(count, root)}"


def _name(member: GroupRank) -> str:
    if member.rank == member.representative:
        return f"rank {member.rank}"
    return f"rank {member.rank} (represented by rank {member.representative})"


def _group(world: World, number: int, members: Sequence[GroupRank]) -> str:
    use = world.use(members[0].group, members[0].representative)
    return f"{use} group {number} {_ranks(world.groups[number].ranks)}"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:SHOWN]))
    return f"[{shown}]" if len(ranks) <= SHOWN else f"[{shown}, ... {ranks[-1]}] of {len(ranks)} ranks"


def _at(line: str) -> str:
    return f" at {line}" if line else ""
