"""Finds ranks of a dry run that would wait for each other on a card.

A call begins when the previous call of its stream and the last earlier call for which the compute stream
waits are over. It is over when the same call has begun on all ranks of its group; a send, when its receive
has begun, and vice versa, as HcclSend and HcclRecv do. Calls that never are over under these rules wait in a
cycle.

The ranks that ran stand for the others: those of a stage are always at the same call.

Importing this module imports no framework.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from .calls import SEND, Call
from .world import World

ORDER = (
    "On a card, a send waits until it is received, and each stream makes its calls in order: let one side "
    "receive first, or put the transfers into different groups."
)


@dataclass(eq=False)
class _Node:
    """A call of a rank that ran.

    Attributes:
        number: Counted in its group; of a transfer, with its peer.
        meeting: The calls that end together.
        peer: The global rank of a transfer's peer.
        before: The calls that must be over before it begins; ``after`` is the inverse.
    """

    rank: int
    call: Call
    number: int
    meeting: _Meeting
    peer: int | None
    before: list[_Node] = field(default_factory=list)
    after: list[_Node] = field(default_factory=list)
    begun: bool = False
    over: bool = False

    def can_begin(self) -> bool:
        return not self.begun and all(node.over for node in self.before)


@dataclass(eq=False)
class _Meeting:
    nodes: list[_Node] = field(default_factory=list)


def cycle(world: World) -> str:
    """The calls that wait for each other, in words; "" if there are none. All calls match."""
    meetings = _Meetings(world)
    nodes = [node for rank, ran in world.ran.items() for node in _nodes(rank, ran.calls, meetings)]
    _run(nodes)
    waiting = next((node for node in nodes if node.begun and not node.over), None)
    if waiting is None:
        return ""
    path: list[_Node] = []
    while waiting not in path:
        path.append(waiting)
        late = next(node for node in waiting.meeting.nodes if not node.begun)
        waiting = _blocker(late)
    waits = "; ".join(
        f"rank {node.rank} waits in {node.call.describe(node.number, node.peer)}"
        for node in path[path.index(waiting) :]
    )
    return f"Ranks wait for each other in a deadlock: {waits}. {ORDER}"


def _blocker(node: _Node) -> _Node:
    """The begun call that ``node`` waits for on its rank."""
    while not node.begun:
        node = next(before for before in node.before if not before.over)
    return node


def _run(nodes: list[_Node]) -> None:
    """Begin and end all calls that can."""
    ready = [node for node in nodes if node.can_begin()]
    while ready:
        node = ready.pop()
        if not node.can_begin():
            continue
        node.begun = True
        if all(other.begun for other in node.meeting.nodes):
            for other in node.meeting.nodes:
                other.over = True
            ready += [after for other in node.meeting.nodes for after in other.after]


class _Meetings:
    """The meetings by call, and the number of calls so far."""

    def __init__(self, world: World):
        self.world = world
        self.by_key: dict[tuple, _Meeting] = defaultdict(_Meeting)
        self.counts: dict[tuple, int] = defaultdict(int)

    def join(self, rank: int, call: Call) -> _Node:
        """The node of the next call of a rank."""
        key, peer = self._key(rank, call)
        self.counts[rank, key, call.kind] += 1
        number = self.counts[rank, key, call.kind] if call.is_transfer else self._count(rank, key)
        node = _Node(rank, call, number, self.by_key[key, number], peer)
        node.meeting.nodes.append(node)
        return node

    def _count(self, rank: int, key: tuple) -> int:
        """The number of collectives, of any kind, of a rank in a group."""
        self.counts[rank, key] += 1
        return self.counts[rank, key]

    def _key(self, rank: int, call: Call) -> tuple[tuple, int | None]:
        """What the calls that end together have in common, and the peer of a transfer."""
        members = self.world.members(call.group) if call.group in self.world.groups else None
        if members is None:
            return (rank, call.group), None
        if not call.is_transfer:
            return tuple(sorted({(member.representative, member.group) for member in members})), None
        position = [member.rank for member in members].index(rank)
        peer = members[self.world.peer(members, position, call)]
        own = (rank, call.group, (call.peer - position) % len(members))
        other = (peer.representative, peer.group, (position - call.peer) % len(members))
        return ((own, other) if call.kind == SEND else (other, own)), peer.rank


def _nodes(rank: int, calls: list[Call], meetings: _Meetings) -> Iterator[_Node]:
    last: dict[int, _Node] = {}  # of each stream
    waited: _Node | None = None  # the last one for which the compute stream waits
    for call in calls:
        node = meetings.join(rank, call)
        for before in (last.get(call.stream), waited):
            if before is not None and before not in node.before:
                node.before.append(before)
                before.after.append(node)
        last[call.stream] = node
        if call.stream == 0 or call.blocking:
            waited = node
        yield node
