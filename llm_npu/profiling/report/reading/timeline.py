"""Reads timelines in Chrome's trace format, from msprof, from Paddle, or both merged into one file."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from llm_npu.core.untrusted.plain_text import printable
from llm_npu.profiling.parts import PREFIX
from paddle_fused.context_parallel import EXCHANGE_EVENT, RING_EVENT

from ..times import FARTHEST, LONGEST, length, moment, nanoseconds, whole
from . import tasks
from .chrome_trace import TraceFile

_DEVICE_KINDS = ("Kernel", "Memcpy", "Memset")  # Paddle's name for rows of a device
_NAME_END = re.compile(r"\[[\d.]+ ?[mun]?s\]$")  # Paddle: "matmul dygraph[0.123 ms]"
_DEVICE, _COMMUNICATION, _HOST = 1, 2, 3


@dataclass
class Timeline:
    """The contents of a timeline. Times are in nanoseconds, on one clock per file."""

    devices: dict[int | None, pd.DataFrame] = field(default_factory=dict)  # tasks.table, by device
    # The communication layer's tasks, by device
    collectives: dict[int | None, pd.DataFrame] = field(default_factory=dict)
    steps: list[tuple[str, int, int]] = field(default_factory=list)  # name, start, end
    data_loading: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int64),) * 2  # starts, ends
    # The program's calls that start transfers, by name: starts, ends
    transfers: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    # The times of the parts of a model: starts, ends
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    memory: tuple[np.ndarray, ...] = (np.zeros(0, np.int64),) * 3  # times, allocated and reserved bytes
    # Starts of tasks, ascending, and their launches; by device
    arrows: dict[int | None, tuple[np.ndarray, ...]] = field(default_factory=dict)


def read(path: Path, notes: list[str]) -> Timeline:
    """Read a file; skipped events are added to ``notes``. Raises ValueError if it is not a Chrome trace."""
    events = _Events(TraceFile(path))
    if events.broken_at is not None:
        notes.append(
            f"{path.name} ends in the middle of an event; only its first {events.broken_at} events are used. "
            "Was the profiler killed?"
        )
    if events.unknown:
        notes.append(f"{path.name}: {events.unknown} events without a usable time or process were skipped.")
    return events.timeline()


class _Events:
    """The events of a file, in columns."""

    def __init__(self, file: TraceFile):
        self.unknown = 0
        self.columns = [array(kind) for kind in "qqqqiiiii"]
        self.codes: dict[object, int] = {"": 0}
        self.process_names: dict[object, str] = {}
        self.process_labels: dict[object, str] = {}
        self.thread_names: dict[tuple, str] = {}
        self.flow_starts: dict[object, int] = {}
        self.flow_ends: list[tuple[object, int, int]] = []  # arrow, time, code of the process
        self.memory: list[tuple[int, int, int]] = []
        readers = {"X": self._complete, "M": self._metadata, "i": self._instant, "I": self._instant}
        readers |= {"s": self._departure, "f": self._arrival}
        for event in file:
            if reader := readers.get(event.get("ph")) if isinstance(event, dict) else None:
                try:
                    reader(event)
                except (KeyError, ValueError, TypeError, AttributeError):
                    self.unknown += 1
        self.broken_at = file.broken_at

    def _code(self, text) -> int:
        return self.codes.setdefault(text, len(self.codes))

    def _complete(self, event: dict) -> None:
        name, arguments = event["name"], event.get("args") or {}
        # Paddle's ts is truncated to microseconds; start_time is exact, but has a different origin.
        exact = arguments.get("start_time")
        exact = nanoseconds(str(exact).removesuffix(" us")) if exact else -1
        if exact > 32 * LONGEST:  # implausible for a clock that starts with the machine or the program
            raise ValueError
        row = (
            moment(event["ts"]),
            length(event["dur"]),
            exact,
            whole(arguments.get("correlation id", -1)),
            self._code(event["pid"]),
            self._code(event.get("tid", "")),
            self._code(_NAME_END.sub("", name) if name[-1:] == "]" else name),
            self._code(event.get("cat", "")),
            self._code(arguments.get("Task Type", "")),
        )
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)

    def _metadata(self, event: dict) -> None:
        arguments = event.get("args") or {}
        if event["name"] == "process_name":
            self.process_names[event["pid"]] = str(arguments["name"])
        elif event["name"] == "process_labels":
            self.process_labels[event["pid"]] = str(arguments["labels"])
        elif event["name"] == "thread_name":
            self.thread_names[event["pid"], event.get("tid", "")] = str(arguments["name"])

    def _instant(self, event: dict) -> None:
        arguments = event.get("args") or {}
        if event.get("name") == "[memory]" and "cpu" not in str(arguments.get("place", "")).lower():
            sizes = whole(arguments["current_allocated"]), whole(arguments["current_reserved"])
            if min(sizes) < 0:
                raise ValueError
            self.memory.append((moment(event["ts"]), *sizes))

    def _departure(self, event: dict) -> None:
        if event.get("cat") != "async":  # Paddle's arrows have truncated times; correlation ids are used
            self.flow_starts[event.get("cat"), str(event["id"])] = moment(event["ts"])

    def _arrival(self, event: dict) -> None:
        if event.get("cat") != "async":
            arrow = event.get("cat"), str(event["id"])
            self.flow_ends.append((arrow, moment(event["ts"]), self._code(event["pid"])))

    def timeline(self) -> Timeline:
        names = list(self.codes)
        start, duration, exact, correlation, process, thread, name, category, engine = map(
            np.array, self.columns
        )
        if (paddle := exact >= 0).any():
            start[paddle] = exact[paddle] + (start[paddle] - exact[paddle]).max()
        role, devices = self._roles(names, process, thread, category)
        device = devices[process]
        launched = self._launches(start, correlation, role, category)
        text = {
            "stream": _categorical(thread, names),
            "name": _categorical(name, names),
            "engine": _categorical(engine, names),
        }

        def table(rows):
            words = {column: values[rows] for column, values in text.items()}
            return tasks.table(start[rows], duration[rows], launched[rows], **words)

        def intervals(rows):
            rows = np.flatnonzero(rows)
            rows = rows[np.argsort(start[rows], kind="stable")]
            return start[rows], start[rows] + duration[rows], name[rows]

        result = Timeline()
        for place, tables in ((_DEVICE, result.devices), (_COMMUNICATION, result.collectives)):
            for number in np.unique(device[role == place]):
                tables[None if number < 0 else int(number)] = table((role == place) & (device == number))
        steps = intervals(category == self.codes.get("ProfileStep", -1))
        result.steps = [
            (_shown(names[code]), int(begin), int(end)) for begin, end, code in zip(*steps, strict=True)
        ]
        result.data_loading = intervals(category == self.codes.get("Dataloader", -1))[:2]
        for event in (RING_EVENT, EXCHANGE_EVENT):
            if event in self.codes:
                result.transfers[event] = intervals(name == self.codes[event])[:2]
        marks = {code: text for text, code in self.codes.items() if str(text).startswith(PREFIX)}
        starts, _, which = intervals(np.isin(name, list(marks)))
        _, passes, _ = intervals(category == self.codes.get("Backward", -1))
        ends = _ends(starts, np.sort(passes))
        for code, text in marks.items():
            if part := _shown(text.removeprefix(PREFIX)):
                result.parts[part] = starts[which == code], ends[which == code]
        if self.memory:
            result.memory = tuple(np.array(sorted(self.memory), dtype=np.int64).T)
        known: dict[int, list[tuple[int, int]]] = {}
        for arrow, when, code in self.flow_ends:
            if arrow in self.flow_starts:
                known.setdefault(int(devices[code]), []).append((when, self.flow_starts[arrow]))
        for number, arrows in known.items():
            result.arrows[None if number < 0 else number] = tuple(np.array(sorted(arrows), dtype=np.int64).T)
        return result

    def _roles(self, names, process, thread, category) -> tuple[np.ndarray, np.ndarray]:
        """The place of each event (_DEVICE, ..., 0 for derived rows), and each process's device or -1."""
        roles, devices = np.zeros(len(names), np.int8), np.full(len(names), -1, np.int64)
        for number, name in self.process_names.items():
            code = self.codes.get(number)
            if code is None:
                continue
            if name == "Ascend Hardware":
                roles[code] = _DEVICE
            elif name in ("Communication", "HCCL"):
                roles[code] = _COMMUNICATION
            elif name.endswith("(CPU)") or name in ("CANN", "Python", "MsTx"):
                roles[code] = _HOST
            label = re.search(r"NPU (\d{1,6})\b", self.process_labels.get(number, ""))
            if label := label or re.match(r"Device (\d{1,6}) ", name):
                devices[code] = int(label[1])
        role = roles[process]
        kinds = [self.codes[kind] for kind in _DEVICE_KINDS if kind in self.codes]
        if not (role == _DEVICE).any():  # a merged file repeats the same kernels
            role[np.isin(category, kinds) & (role != _HOST)] = _DEVICE
        # A collective has a row, with a row below it per transfer ("Plane 0").
        for (number, row), name in self.thread_names.items():
            if name.startswith("Plane") and number in self.codes and row in self.codes:
                below = (process == self.codes[number]) & (thread == self.codes[row])
                role[below & (role == _COMMUNICATION)] = 0
        return role, devices

    def _launches(self, start, correlation, role, category) -> np.ndarray:
        """The launch time of each task, by Paddle's correlation ids; -1 without one."""
        launched = np.full(len(role), -1, np.int64)
        runtime = (correlation >= 0) & (category == self.codes.get("CudaRuntime", -1))
        if runtime.any():
            order = np.argsort(correlation[runtime], kind="stable")
            ids, times = correlation[runtime][order], start[runtime][order]
            rows = np.flatnonzero((correlation >= 0) & (role == _DEVICE))
            at = np.minimum(np.searchsorted(ids, correlation[rows]), len(ids) - 1)
            same = ids[at] == correlation[rows]
            launched[rows[same]] = times[at[same]]
        return launched


def _ends(marks: np.ndarray, passes: np.ndarray) -> np.ndarray:
    """The end of each part: the next mark, or the next of the ascending ends of backward ``passes``."""
    marks, passes = np.append(marks, FARTHEST), np.append(passes, FARTHEST)
    return np.minimum(marks[1:], passes[np.searchsorted(passes, marks[:-1])])


def _shown(name: object) -> str:
    """Printable text; pandas 3 rejects unpaired surrogates, which JSON can contain."""
    return printable(name, longest=tasks.LONGEST)


def _categorical(codes: np.ndarray, names: list) -> pd.Categorical:
    """A categorical column from ``codes``, indices into ``names``."""
    different, positions = np.unique(codes, return_inverse=True)
    which, words = pd.factorize(np.array([_shown(names[code]) for code in different], dtype=object))
    return pd.Categorical.from_codes(which[positions], categories=list(words))
