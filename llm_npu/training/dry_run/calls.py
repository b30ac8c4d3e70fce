"""Reads the collectives of one rank from its journal, with the marks of ``virtual_npu.call_marks``.

The journal's other lines are skipped. Importing this module imports no framework.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from virtual_npu import STEP_BEGINS, STEP_ENDS, call_marks

from . import journal

LONGEST = 1 << 22  # characters of a line; the ranks of a group are one line
SEND, RECEIVE, ALL_TO_ALL = "send", "recv", "all_to_all"
SHIFT = "shift"  # every rank sends to the next one of the group
UNKNOWN_PART = -1  # elements of an all-to-all that a rank keeps, if it does not pass them
UNKNOWN = "an operator"  # the line of a call that Python did not make
EVENTS = ('{"event":"collective"', '{"event":"mark"')


@dataclass(frozen=True)
class Call:
    """One collective or transfer of a rank.

    Attributes:
        group: The number of Paddle's group; a communicator that Paddle does not know has its own name.
        peer: The peer or root, counted in the group.
        ranks: The number of ranks of the group.
        line: The program's line, ``file:line``.
        stream: 0 is the compute stream.
        blocking: Whether later work of the compute stream waits for the call.
        reduce: The reduction, or "".
        sent, received: Of an all-to-all, the elements sent to and received from each rank, if known.
        in_step: The number of the step, from 1; 0 before the first and between steps.
    """

    kind: str
    group: int | str
    peer: int
    ranks: int
    dtype: str
    elements: int
    bytes: int
    stream: int
    line: str
    blocking: bool
    reduce: str = ""
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    in_step: int = 0

    @property
    def is_transfer(self) -> bool:
        return self.kind in (SEND, RECEIVE)

    def describe(self, number: int, peer: int | None = None) -> str:
        """The call in words, ``number`` counted in its group. ``peer``: the global rank of the peer."""
        kind = f"{self.kind}({self.reduce.lower()})" if self.reduce else self.kind
        if peer is not None:
            kind += f" {'to' if self.kind in (SEND, 'reduce') else 'from'} rank {peer}"
        size = "" if self.sent else f" of {self.elements} {self.dtype}"
        return f"{kind}{size} (call {number}) at {self.line}"


@dataclass(frozen=True)
class Group:
    """A group of Paddle: its ranks, and the line that created it on one of them."""

    ranks: tuple[int, ...]
    line: str


@dataclass
class RankCalls:
    """What a rank's journal says about its collectives.

    Attributes:
        groups: All groups of the run, by number; also those without this rank.
        uses: The purposes of groups ("tp", "pp", ...), by number.
        mesh: fleet's axes and their degrees, outermost first; empty without fleet.
        peak: The largest number of bytes of all tensors; None if the process did not end by itself.
    """

    rank: int
    calls: list[Call] = field(default_factory=list)
    groups: dict[int, Group] = field(default_factory=dict)
    uses: dict[int, str] = field(default_factory=dict)
    mesh: dict[str, int] = field(default_factory=dict)
    peak: int | None = None


def read(file: str | Path) -> RankCalls:
    """Read the journal ``FILE.<rank>``. Raises UserError, with the line, if it is not a journal."""
    path = Path(file)
    if not path.suffix[1:].isdecimal():
        raise UserError(f"{path} does not end in the number of a rank; accepted: FILE.<rank>")
    with path.open(encoding="utf-8", errors="replace") as lines:
        return _read(iter(lambda: lines.readline(LONGEST), ""), int(path.suffix[1:]), str(path))


class _Reader:
    """The state between the lines of a journal."""

    def __init__(self, rank: int):
        self.rank = RankCalls(rank)
        self.communicators: dict[str, int] = {}
        self.uses: dict[str, str] = {}  # by communicator
        self.open: dict | None = None  # the facts of the open call
        self.transfers: list[Call] = []  # of the open call, if it is one collective
        self.step = self.steps = 0

    def collective(self, event: dict) -> None:
        facts = self.open or {}
        call = Call(
            kind=str(event["kind"]),
            group=facts.get("group", str(event["group"])),
            peer=int(event["peer"]),
            ranks=int(event["ranks"]),
            dtype=str(event["dtype"]),
            elements=int(event["elements"]),
            bytes=int(event["bytes"]),
            stream=int(event["stream"]),
            line=str(facts.get("line") or UNKNOWN),
            blocking=bool(facts.get("blocking", False)),
            reduce=str(facts.get("reduce", "")),
            sent=tuple(map(int, facts.get("sent", ()))),
            received=tuple(map(int, facts.get("received", ()))),
            in_step=self.step,
        )
        (self.transfers if "kind" in facts else self.rank.calls).append(call)

    def mark(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if text == STEP_BEGINS:
            self.steps += 1
            self.step = self.steps
        elif text == STEP_ENDS:
            self.step = 0
        elif word == call_marks.CALL:
            self.open = plain_json.loads(rest)
        elif word == call_marks.RETURNED:
            if self.open and "kind" in self.open:
                self._close(self.open)
            self.open = None
        elif word == call_marks.COMMUNICATOR:
            name, number = rest.split(" ")
            self.communicators[name] = int(number)
        elif word == journal.GROUP:
            name, use = rest.split(" ")
            self.uses[name] = use
        elif word == call_marks.MEMBERS:
            group = plain_json.loads(rest)
            members = tuple(map(int, group["ranks"]))
            self.rank.groups[int(group["group"])] = Group(members, str(group["line"]))
        elif word == call_marks.MESH:
            self.rank.mesh = {str(axis): int(degree) for axis, degree in plain_json.loads(rest).items()}
        elif word == call_marks.PEAK:
            self.rank.peak = int(rest)

    def _close(self, facts: dict) -> None:
        """Replace the transfers of a call by one collective of the call's kind."""
        if not self.transfers:
            return
        sent = [call for call in self.transfers if call.kind == SEND]
        whole = replace(
            self.transfers[0],
            kind=str(facts["kind"]),
            peer=0,
            elements=sum(call.elements for call in sent),
            bytes=sum(call.bytes for call in sent),
        )
        self.rank.calls.append(whole)
        self.transfers = []

    def finished(self) -> RankCalls:
        """The rank, with the numbers of groups instead of the names of communicators."""
        numbers = self.communicators
        self.rank.calls = [
            replace(call, group=numbers.get(call.group, call.group)) if isinstance(call.group, str) else call
            for call in self.rank.calls
        ]
        self.rank.uses = {numbers[name]: use for name, use in self.uses.items() if name in numbers}
        return self.rank


def _read(lines: Iterable[str], rank: int, name: str) -> RankCalls:
    reader = _Reader(rank)
    for number, line in enumerate(lines):
        if not line.startswith(EVENTS):
            continue
        try:
            event = plain_json.loads(line)
            if event["event"] == "mark":
                reader.mark(event["text"])
            else:
                reader.collective(event)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UserError(f"{name}, line {number + 1}, is not a journal line: {line[:80]!r}") from None
    return reader.finished()
