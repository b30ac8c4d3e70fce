"""Reports the cycle if ranks first use process groups in different orders and therefore deadlock.

The first call of a group creates its communicator, which requires all of its ranks. Until then, Paddle waits
for the other ranks in its key-value store, where neither Paddle nor the plugin sees a deadlock. A rank
therefore publishes in that store which group it is about to use, and reads what the ranks of the group wait
for. A rank that has published a group does nothing else until all of its ranks have used it. Thus rank r
waits for rank s if s is in r's group, has not made that group's communicator, and waits for another group. A
cycle of such waits is a deadlock.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from . import source_lines
from .settings import collective_timeout

LIBRARY = "paddle.base.libpaddle"
KEY = "virtual_npu/first_use_of_groups"
POLL = 0.02  # seconds
# Methods of a process group that do not communicate.
LOCAL = ("name", "rank", "size")


@dataclass(frozen=True)
class Wait:
    """What a rank waits for.

    Attributes:
        group: the number of the group that the rank uses for the first time; None if the rank does not wait.
        ranks: the ranks of that group.
        line: the line of the program.
        communicators: the numbers of the groups whose communicators the rank has made.
    """

    group: int | None = None
    ranks: tuple[int, ...] = ()
    line: str = ""
    communicators: tuple[int, ...] = ()

    def describe(self, rank: int) -> str:
        return (
            f"rank {rank} waits for the other ranks of group {self.group} {list(self.ranks)} at {self.line}"
        )


@dataclass
class Board:
    """The waits of all ranks, in Paddle's store.

    Attributes:
        rank: this rank.
        own: what this rank waits for; its main thread begins and ends a wait.
        lock: for ``own``, because every thread makes communicators.
    """

    store: object
    rank: int
    own: Wait = Wait()
    lock: threading.Lock = field(default_factory=threading.Lock)

    def publish(self, **changes) -> Wait:
        """Publish ``own`` with these fields changed."""
        with self.lock:
            return self._publish(changes)

    def add_communicator(self, group: int) -> None:
        with self.lock:
            self._publish({"communicators": (*self.own.communicators, group)})

    def _publish(self, changes: dict[str, object]) -> Wait:
        self.own = replace(self.own, **changes)
        number = self.store.add(f"{KEY}/{self.rank}", 0) + 1
        self.store.set(f"{KEY}/{self.rank}/{number}", pickle.dumps(self.own))
        self.store.add(f"{KEY}/{self.rank}", 1)
        return self.own

    def read(self, rank: int) -> Wait:
        number = self.store.add(f"{KEY}/{rank}", 0)
        if number == 0:
            return Wait()
        return pickle.loads(bytes(self.store.get(f"{KEY}/{rank}/{number}")))

    def others(self, wait: Wait, rank: int) -> Iterator[tuple[int, Wait]]:
        """The ranks of the group of ``wait`` that ``rank`` waits for, and their own waits."""
        for other in wait.ranks:
            if (
                other != rank
                and wait.group not in (own := self.read(other)).communicators
                and own.group != wait.group
            ):
                yield other, own

    def cycle(self, wait: Wait, path: tuple[int, ...]) -> list[tuple[int, Wait]]:
        """The waits, from the last rank of ``path`` on, that lead back to its first; empty if none do."""
        for other, own in self.others(wait, path[-1]):
            if other == path[0]:
                return [(path[-1], wait)]
            if own.group is not None and other not in path and (more := self.cycle(own, (*path, other))):
                return [(path[-1], wait), *more]
        return []


def watch() -> None:
    """Watch the first use of every group of this process. The plugin calls it while paddle is imported."""
    if os.environ.get("VIRTUAL_NPU_DRY") == "1" or int(os.environ.get("PADDLE_TRAINERS_NUM") or 1) == 1:
        return
    groups, used = sys.modules[LIBRARY].ProcessGroup, weakref.WeakSet()
    for name in vars(groups):
        if not name.startswith("_") and name not in LOCAL:
            setattr(groups, name, _watched(getattr(groups, name), used))


def _watched(method: Callable, used: weakref.WeakSet) -> Callable:
    @functools.wraps(method)
    def call(group, *args, **kwargs):
        if group in used:
            return method(group, *args, **kwargs)
        board, (number, ranks) = _board(), of_paddle(group)
        if board is None or number is None:
            return method(group, *args, **kwargs)
        is_main = threading.current_thread() is threading.main_thread()
        try:
            if is_main:
                line = str(source_lines.of_frame(sys._getframe(1)))
                _wait_for_ranks(board, board.publish(group=number, ranks=ranks, line=line))
            try:
                return method(group, *args, **kwargs)
            finally:  # a call that fails, such as one that does not match the others', has made it as well
                used.add(group)
                board.add_communicator(number)
        finally:
            if is_main:
                board.publish(group=None, ranks=(), line="")

    # Errors and profiles name the innermost line of the program; the plugin skips code that is not in a file.
    call.__code__ = call.__code__.replace(co_filename=f"<{__name__}>")
    return call


def _wait_for_ranks(board: Board, wait: Wait) -> None:
    """Return when all ranks use the group of ``wait``, or after the timeout: a rank may be slow.

    Raises RuntimeError if ranks wait for each other.
    """
    start, cycle, suspected = time.monotonic(), [], 0.0
    while True:
        try:
            if not list(board.others(wait, board.rank)):
                return
            before, cycle = cycle, board.cycle(wait, (board.rank,))
            suspected = suspected if before else time.monotonic()
        except (RuntimeError, ValueError):  # rank 0, which has the store, has exited
            if not cycle:
                raise
        # All ranks of the cycle have time to see it before one of them exits.
        if cycle and time.monotonic() > suspected + collective_timeout() / 2:
            waits = "; ".join(own.describe(rank) for rank, own in cycle)
            raise RuntimeError(
                f"Ranks wait for each other in a deadlock: {waits}. The first call of a group makes its "
                "communicator together with the group's other ranks; use new groups first in the same order "
                "on all ranks, for example in a barrier after each new_group."
            )
        if not cycle and time.monotonic() > start + collective_timeout():
            return
        time.sleep(POLL)


@functools.cache
def _board_of(store: object, rank: int) -> Board:
    return Board(store, rank)


def _board() -> Board | None:
    """The board of the run; None before Paddle has a store."""
    collective = sys.modules.get("paddle.distributed.collective")
    store = getattr(collective, "_default_store", None)
    return store and _board_of(store, int(os.environ.get("PADDLE_TRAINER_ID") or 0))


def of_paddle(process_group) -> tuple[int | None, tuple[int, ...]]:
    """The number and the ranks of Paddle's group; None if Paddle does not know it."""
    from paddle.distributed.communication.group import _GroupManager

    for number, group in _GroupManager.group_map_by_id.items():
        if group.process_group is process_group:
            return number, tuple(group.ranks)
    return None, ()
