"""Writes to the journal what a dry run's matcher must know about collectives beyond the device's own lines.

    members {"group": 7, "ranks": [0, 1], "line": "train.py:12"}      a group of several ranks, also of others
    call {"group": 7, "line": "train.py:30", "blocking": true, "reduce": "SUM"}
    returned                                the collectives in between belong to the call
    communicator dry-3 7                    the group of the device's communicator
    mesh {"data": 1, "pipe": 2}             fleet's axes and degrees, at the end of the process
    peak 1024                               peak bytes of all tensors, at the end of the process

Group numbers are those of ``paddle.distributed``, which are the same on all ranks if all ranks create their
groups in the same order. Calls from C++, such as a fused operator's, have no mark.
"""

from __future__ import annotations

import atexit
import functools
import json
import sys
import weakref
from collections.abc import Callable
from contextlib import contextmanager

from paddle_fused import paddle_release

from . import group_order, source_lines
from .record import journal_file, mark_journal

MEMBERS, COMMUNICATOR = "members", "communicator"
CALL, RETURNED = "call", "returned"
MESH, PEAK = "mesh", "peak"
SIZES = {  # the arguments of uneven all-to-alls: the elements sent to, and received from, each rank
    "all_to_all_single": (3, 2),
    "all_to_all_single_on_calc_stream": (3, 2),
    "alltoall_single": (2, 3),
}


class _Marks:
    """The groups that have been written, and the open call."""

    def __init__(self):
        self.groups: set[int] = set()
        self.numbers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by process group
        self.lines: dict[int, str] = {}  # where groups were created
        self.named: set[int] = set()
        self.depth = 0

    def number_of(self, process_group) -> int | None:
        if process_group not in self.numbers:
            number = group_order.of_paddle(process_group)[0]
            if number is None:
                return None
            self.numbers[process_group] = number
        return self.numbers[process_group]

    def write_groups(self) -> None:
        """Write the groups that Paddle has made since the last call."""
        from paddle.distributed.communication.group import _GroupManager

        known = _GroupManager.group_map_by_id
        if len(known) == len(self.groups):
            return
        for number in sorted(known.keys() - self.groups):
            group = known[number]
            if len(group.ranks) > 1:
                line = self.lines.get(number, "")
                facts = {"group": number, "ranks": list(map(int, group.ranks)), "line": line}
                mark_journal(f"{MEMBERS} {json.dumps(facts)}")
            self.groups.add(number)

    def name_communicator(self, process_group) -> None:
        """Write the communicator of the group, which must exist or can be made without other ranks."""
        number = self.number_of(process_group)
        if number in self.named or not hasattr(process_group, "get_comm_name"):
            return
        import paddle

        self.named.add(number)
        self.write_groups()
        device = int(paddle.device.get_device().rpartition(":")[2])
        mark_journal(f"{COMMUNICATOR} {process_group.get_comm_name(device)} {number}")

    @contextmanager
    def call(self, process_group, number: int, facts: dict):
        """The collectives inside the block, also those of nested calls, are one call of the program."""
        self.write_groups()
        if self.depth == 0:
            facts = {"group": number, "line": _line(), **facts}
            mark_journal(f"{CALL} {json.dumps(facts)}")
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            if self.depth == 0:
                mark_journal(RETURNED)
                self.name_communicator(process_group)


@functools.cache
def _marks() -> _Marks:
    return _Marks()


@functools.cache
def start() -> None:
    """Mark the collectives of this process; no-op without a journal. Call it after ``import paddle``."""
    if journal_file() is None:
        return
    library = sys.modules[group_order.LIBRARY]
    for name in vars(library.ProcessGroup):
        if not name.startswith("_") and name not in group_order.LOCAL:
            setattr(library.ProcessGroup, name, _marked(name, getattr(library.ProcessGroup, name)))
    from paddle.distributed import collective

    add = collective._add_new_group

    @functools.wraps(add)
    def add_new_group(group):
        _marks().lines[group.id] = _line()
        add(group)

    collective._add_new_group = add_new_group
    atexit.register(_finish)


def name_communicator(process_group) -> None:
    """Write which communicator of the device belongs to the group; no-op without marks."""
    if journal_file() is not None and start.cache_info().currsize:
        _marks().name_communicator(process_group)


@contextmanager
def one_call(process_group, **facts):
    """The transfers in this block are one collective of the group for the matcher, such as an all-to-all.

    Use it where the order and the peers of a rank's transfers depend on its number in the group.
    """
    number = _marks().number_of(process_group) if journal_file() is not None else None
    if number is None:
        yield
        return
    with _marks().call(process_group, number, facts):
        yield


def _line() -> str:
    source = source_lines.of_frame(sys._getframe(1))
    return f"{source.file}:{source.line}" if source else ""


def _marked(name: str, method: Callable) -> Callable:
    @functools.wraps(method)
    def call(process_group, *args, **kwargs):
        marks = _marks()
        number = marks.number_of(process_group)
        if number is None:
            return method(process_group, *args, **kwargs)
        with marks.call(process_group, number, _facts(name, args, kwargs)):
            return method(process_group, *args, **kwargs)

    # The plugin names the innermost line of the program, and skips code that is not in a file.
    call.__code__ = call.__code__.replace(co_filename=f"<{__name__}>")
    return call


def _facts(name: str, args: tuple, kwargs: dict) -> dict:
    """Whether the compute stream waits for the call, its reduction, and the sizes of an uneven all-to-all."""
    values = [*args, *kwargs.values()]
    facts = {"blocking": any(value is True for value in values)}
    for value in values:
        if type(value).__name__ == "ReduceOp":
            facts["reduce"] = value.name
    if name in SIZES and len(args) > max(SIZES[name]):
        sent, received = (args[position] for position in SIZES[name])
        facts |= {"sent": list(map(int, sent)), "received": list(map(int, received))}
    return facts


def _finish() -> None:
    """Write what is known only at the end."""
    import paddle

    _marks().write_groups()
    fleets = sys.modules.get("paddle.distributed.fleet")
    groups = getattr(getattr(fleets, "fleet", None), "_hcg", None)
    if groups is not None:
        topology = groups.topology()
        names = topology.get_hybrid_group_names()
        mark_journal(f"{MESH} {json.dumps({name: topology.get_dim(name) for name in names})}")
    mark_journal(f"{PEAK} {paddle_release.max_memory_allocated(paddle.device.get_device())}")
