"""The totals of a rank's profile: time by class, operators, steps, memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from . import classes
from .reading import tasks
from .reading.load import RankTrace
from .spans import Spans

EXPOSED, IDLE = "communication, exposed", "idle"
# If several classes are active at the same time, the first one in this order is counted.
PRIORITY = (
    classes.ATTENTION,
    classes.MATMUL,
    classes.VECTOR,
    classes.AICPU,
    classes.HOST,
    EXPOSED,
    classes.COPY,
    IDLE,
)


@dataclass(frozen=True)
class Work:
    """The tasks of a class: count, total duration, and exclusive share of the window, in ns.

    ``alone`` of all classes, exposed communication and idle time add up to exactly the window.
    """

    calls: int
    time: int
    alone: int


@dataclass(frozen=True)
class Operator:
    """The tasks of an operator type and class, in ns; ``shapes`` and ``site`` are from the most expensive."""

    name: str
    work: str
    calls: int
    time: int
    longest: int
    dtypes: str
    shapes: str
    site: str  # the line of the program that called it, if recorded


@dataclass(frozen=True)
class StepTimes:
    """A training step with its duration and its breakdown by PRIORITY, in ns."""

    name: str
    time: int
    spent: dict[str, int]
    data_loading: int


@dataclass(frozen=True)
class Measured:
    """The totals of a rank; times in nanoseconds, memory in bytes.

    Attributes:
        window: the time from the first to the last task or step.
        hidden: communication that overlaps computation; the rest is ``exposed``.
        transfers: the communication of split sequences, by the name of its profiler event, with its exposed
            time in ``alone``. Empty if the profile has no launch times.
        parts: the tasks of each part of a vision-language model. Empty if the profile has no marks or no
            launch times.
        launch_bound: the part of the idle time in which the device waited for the host to launch the next
            task; None if the profile has no launch times.
        machine: the machine's name in a multi-machine run.
    """

    rank: int
    machine: str
    window: int
    works: dict[str, Work]
    communication: int
    hidden: int
    exposed: int
    transfers: dict[str, Work]
    parts: dict[str, Work]
    idle: int
    launch_bound: int | None
    data_loading: int
    operators: list[Operator]
    steps: list[StepTimes]
    collectives: pd.DataFrame  # operator, name and duration, in order of start
    memory: tuple[np.ndarray, np.ndarray, np.ndarray]  # ns since the window's start, allocated, reserved
    tasks: int
    sources: list[str]

    @property
    def computing(self) -> int:
        """The time during which an operator computes."""
        return sum(self.works[name].alone for name in classes.COMPUTE)

    def spent(self) -> dict[str, int]:
        """The window, divided among PRIORITY."""
        parts = {name: work.alone for name, work in self.works.items() if name in PRIORITY}
        return {
            name: {EXPOSED: self.exposed, IDLE: self.idle}.get(name, parts.get(name, 0)) for name in PRIORITY
        }


def measure(trace: RankTrace) -> Measured:
    """Compute the totals of a rank's profile."""
    rows = trace.tasks
    start = rows["start"].to_numpy()
    end = start + rows["duration"].to_numpy()
    work = rows["work"].to_numpy()
    borders = [(begin, stop) for _, begin, stop in trace.steps]
    first = min([int(start.min()), *(begin for begin, _ in borders)])
    last = max([int(end.max()), *(stop for _, stop in borders)])

    spans = {name: Spans(start[work == name], end[work == name]) for name in classes.CLASSES}
    claimed, levels = Spans([], []), {}
    for name in PRIORITY[:-1]:
        claimed = claimed.union(spans[classes.COMMUNICATION if name == EXPOSED else name])
        levels[name] = claimed
    spent = _spent(levels, np.array([first]), np.array([last]))
    computing = levels[classes.HOST]
    communication = spans[classes.COMMUNICATION]

    works = {}
    for name in classes.CLASSES:
        chosen = work == name
        alone = spent[EXPOSED if name == classes.COMMUNICATION else name][0]
        works[name] = Work(int(chosen.sum()), int((end - start)[chosen].sum()), int(alone))
    loading = Spans(*trace.data_loading)
    collectives = tasks.collectives(rows).to_numpy()
    if not collectives.any():  # a table without a timeline contains the AICPU kernels instead
        collectives = work == classes.COMMUNICATION
    return Measured(
        rank=trace.rank,
        machine=trace.machine,
        window=last - first,
        works=works,
        communication=communication.total,
        hidden=computing.shared(communication),
        exposed=works[classes.COMMUNICATION].alone,
        transfers=_during(rows[work == classes.COMMUNICATION], trace.transfers, computing),
        parts=_during(rows, trace.parts, Spans([], [])),
        idle=int(spent[IDLE][0]),
        launch_bound=_launch_bound(rows, start, claimed, first, last),
        data_loading=int(loading.covered([first], [last])[0]),
        operators=_operators(rows),
        steps=_steps(trace, levels, loading),
        collectives=rows.loc[collectives, ["operator", "name", "duration"]],
        memory=(trace.memory[0] - first, *trace.memory[1:]),
        tasks=len(rows),
        sources=trace.sources,
    )


def _spent(levels: dict[str, Spans], starts: np.ndarray, ends: np.ndarray) -> dict[str, np.ndarray]:
    """For each interval, its share of each of PRIORITY."""
    spent, before = {}, np.zeros(len(starts), np.int64)
    for name, claimed in levels.items():
        until = claimed.covered(starts, ends)
        spent[name], before = until - before, until
    return spent | {IDLE: ends - starts - before}


def _during(rows: pd.DataFrame, events: dict[str, tuple], hidden_by: Spans) -> dict[str, Work]:
    """The tasks launched during the ``events`` of each name, with the time not ``hidden_by`` in ``alone``."""
    start, duration, launched = (rows[name].to_numpy() for name in ("start", "duration", "launched"))
    works = {}
    for name, (begins, ends) in events.items():
        last = np.searchsorted(begins, launched, "right") - 1
        chosen = (last >= 0) & (launched <= ends[last])
        if chosen.any():
            spans = Spans(start[chosen], (start + duration)[chosen])
            exposed = spans.total - hidden_by.shared(spans)
            works[name] = Work(int(chosen.sum()), int(duration[chosen].sum()), exposed)
    return works


def _launch_bound(rows: pd.DataFrame, start, busy: Spans, first: int, last: int) -> int | None:
    launched = rows["launched"].to_numpy()
    if not (launched >= 0).any():
        return None
    begins, ends = busy.gaps(first, last)
    # If several tasks end a gap, use the one launched first.
    known = launched >= 0
    order = np.lexsort((launched[known], start[known]))
    start, launched = start[known][order], launched[known][order]
    task = np.minimum(np.searchsorted(start, ends), len(start) - 1)
    matched = start[task] == ends
    waiting = np.minimum(launched[task], ends) - begins
    return int(np.maximum(waiting, 0)[matched].sum())


def _operators(rows: pd.DataFrame) -> list[Operator]:
    keys = ["operator", "work", "dtypes", "shapes", "site"]
    groups = (
        rows.groupby(keys, observed=True, sort=False)["duration"].agg(["count", "sum", "max"]).reset_index()
    )
    operators = []
    for (name, work), parts in groups.groupby(["operator", "work"], observed=True, sort=False):
        dtypes = parts.groupby("dtypes", observed=True)["sum"].sum().sort_values(ascending=False)
        shapes, site = parts.loc[parts["sum"].idxmax(), ["shapes", "site"]]
        operators.append(
            Operator(
                name,
                work,
                int(parts["count"].sum()),
                int(parts["sum"].sum()),
                int(parts["max"].max()),
                _mixture(dtypes),
                "" if shapes in classes.UNKNOWN else shapes.strip('"'),
                "" if site in classes.UNKNOWN else site,
            )
        )
    return sorted(operators, key=lambda operator: (-operator.time, operator.name))


def _mixture(times: pd.Series) -> str:
    """The dtypes: ``bfloat16``, or with time shares if there are several, ``bfloat16 75%; float32 25%``."""
    times = times[times.index != ""]
    shares = 100 * times / max(int(times.sum()), 1)
    shown = shares[(shares >= 0.5) | (shares == shares.max())]
    if len(shown) == 1:
        return shown.index[0]
    return "; ".join(f"{name} {percent:.0f}%" for name, percent in shown.items())


def _steps(trace: RankTrace, levels: dict[str, Spans], loading: Spans) -> list[StepTimes]:
    if not trace.steps:
        return []
    names, starts, ends = zip(*trace.steps, strict=True)
    starts, ends = np.array(starts), np.array(ends)
    spent = _spent(levels, starts, ends)
    waits = loading.covered(starts, ends)
    steps = []
    for i, name in enumerate(names):
        parts = {kind: int(spent[kind][i]) for kind in PRIORITY}
        steps.append(StepTimes(name, int(ends[i] - starts[i]), parts, int(waits[i])))
    return steps
