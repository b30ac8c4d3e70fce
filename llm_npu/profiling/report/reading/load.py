"""Assembles each rank's tasks, launches, steps and memory from the existing files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from llm_npu.core.errors import UserError

from ..times import FARTHEST, LONGEST
from . import op_summary, tasks, timeline, tree

_NOTHING = np.zeros(0, np.int64)
_COPY = "MEMCPY_ASYNC"
_SAME_START = 1_000  # ns between the end of an arrow and the start of its kernel


@dataclass
class RankTrace:
    """A rank's profile, with times in nanoseconds on one clock. ``machine`` is set in a multi-machine run."""

    rank: int
    tasks: pd.DataFrame  # see tasks.table
    place: Path  # the folder or the trace that was read
    steps: list[tuple[str, int, int]] = field(default_factory=list)  # name, start, end
    data_loading: tuple[np.ndarray, np.ndarray] = (_NOTHING, _NOTHING)  # starts, ends
    # Calls that start transfers, by name: starts, ends
    transfers: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    # The times of the parts of a model: starts, ends
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    memory: tuple[np.ndarray, np.ndarray, np.ndarray] = (_NOTHING,) * 3  # times, allocated, reserved bytes
    sources: list[str] = field(default_factory=list)  # remarks on files, for the report
    machine: str = ""


@dataclass
class Profile:
    """The ranks below the folders, notes on skipped files, and whether a virtual NPU wrote the profile."""

    directories: tuple[Path, ...]
    ranks: list[RankTrace]
    notes: list[str]
    virtual: bool


def load(*directories: Path) -> Profile:
    """Read all profiles below ``directories``. Raises ValueError if nothing is readable."""
    search = tree.search(directories)
    notes = search.notes
    ranks: dict[int, RankTrace] = {}
    for export in _newest_of_each_rank(search.exports, notes):
        for rank, trace in _from_export(export, notes).items():
            if ranks.setdefault(rank, trace) is not trace:
                notes.append(f"{export.folder.name} was skipped, because rank {rank} has another profile.")
    if search.merged and ranks:
        names = ", ".join(path.name for _, path in search.merged)
        notes.append(f"{names} was not read, because it repeats the kernels of the PROF_ folders.")
    traces = search.paddle if ranks else search.paddle or search.merged
    for rank, path in _newest(traces, notes):
        _add_paddle(ranks, rank, path, notes)
    kept = [ranks[rank] for rank in sorted(ranks) if len(ranks[rank].tasks)]
    if not kept:
        raise UserError(
            f"{', '.join(map(str, directories))} contains no device task. Profile with "
            "targets=[ProfilerTarget.CUSTOM_DEVICE] and custom_device_types=['npu'], and run "
            "msprof --export=on --output=DIR on the PROF_ folder. " + " ".join(notes)
        )
    for trace in kept:
        trace.machine = tree.machine_of(trace.place, trace.rank, search)
        _check_times(trace, notes)
    return Profile(directories, kept, list(dict.fromkeys(notes)), search.virtual)


def _check_times(trace: RankTrace, notes: list[str]) -> None:
    """Add a note on implausible times; raises UserError if their sum does not fit into 64 bits."""
    start, duration = (trace.tasks[name].to_numpy() for name in ("start", "duration"))
    if duration.sum(dtype=float) >= FARTHEST:
        raise UserError(
            f"The task durations in {trace.place} add up to more than 146 years, so the profile is "
            "damaged. Export it again."
        )
    if (spread := int((start + duration).max()) - int(start.min())) > LONGEST:
        notes.append(
            f"The tasks of rank {trace.rank} are up to {spread // LONGEST:,} years apart: a time in "
            f"{trace.place.name} is damaged, so window and idle time are wrong."
        )


def _newest_of_each_rank(exports: list[tree.Export], notes: list[str]) -> list[tree.Export]:
    """Drop older captures of a rank, because a reused folder would count steps twice."""
    newest: dict[object, tree.Export] = {}
    for export in sorted(exports, key=lambda export: (_stamp(export.folder), export.folder.name)):
        owner = export.rank if export.rank is not None else _devices(export)
        if owner in newest:
            notes.append(f"{newest[owner].folder.name} is an older capture of the same rank and was skipped.")
        newest[owner] = export
    return list(newest.values())


def _stamp(folder: Path) -> str:
    """The time in a name like PROF_000001_20240911123456789_ABCDEF; "" if there is none."""
    return next((part for part in folder.name.split("_") if part.isdecimal() and len(part) >= 12), "")


def _devices(export: tree.Export) -> tuple:
    """The devices of an export, read from as few files as possible."""
    folders = [path.name for path in export.folder.glob("device_*")]
    return tuple(sorted(folders)) or op_summary.devices(export.files["op_summary"]) or (export.folder.name,)


def _from_export(export: tree.Export, notes: list[str]) -> dict[int, RankTrace]:
    tables = op_summary.read(export.files["op_summary"], notes)
    lines = [line for path in export.files["msprof"] if (line := _timeline(path, notes))]
    devices = dict.fromkeys(tables or [device for line in lines for device in line.devices])
    ranks = {}
    for device in devices:
        # A timeline without process labels belongs to the only device.
        owners = {device, None} if len(devices) == 1 else {device}
        parts = [line.devices[owner] for line in lines for owner in owners if owner in line.devices]
        rows = tasks.joined([tables[device], *_copies(tables[device], parts)] if tables else parts)
        if not tasks.collectives(rows).any():
            # With a single device, the communication layer belongs to it.
            layers = [layer for line in lines for layer in line.collectives.items()]
            own = [layer for owner, layer in layers if owner == device or len(devices) == 1]
            rows = tasks.joined([rows, *own])
        rank = export.rank if export.rank is not None and len(devices) == 1 else device
        rank = len(ranks) if rank is None else rank
        names = ", ".join(path.name for path in (*export.files["op_summary"], *export.files["msprof"]))
        rows = _with_launches(rows, lines, device)
        ranks[rank] = RankTrace(rank, rows, export.folder, sources=[f"{export.folder.name}: {names}"])
        ranks[rank].memory = op_summary.memory(
            export.files["memory_record"], export.files["npu_mem"], device, notes
        )
    if tables:
        _check_sum(export, tasks.joined(list(tables.values())), notes)
    return ranks


def _copies(rows: pd.DataFrame, parts: list[pd.DataFrame]) -> list[pd.DataFrame]:
    """Copies between host and device; msprof writes them to timelines (``parts``), not to op_summary."""
    if (rows["engine"] == _COPY).any():
        return []
    return [part[part["engine"] == _COPY] for part in parts]


def _timeline(path: Path, notes: list[str]) -> timeline.Timeline | None:
    """Read a timeline; None, with a note, if it is invalid. The tables may still be usable."""
    try:
        return timeline.read(path, notes)
    except ValueError as problem:
        notes.append(f"{problem} It was skipped.")
    except OSError as error:
        notes.append(f"{path.name} cannot be read and was skipped: {error.strerror or error}.")
    return None


def _check_sum(export: tree.Export, rows: pd.DataFrame, notes: list[str]) -> None:
    """Add a note if msprof's own sums show that rows of op_summary are missing."""
    total = op_summary.statistic_total(export.files["op_statistic"], notes)
    counted = int(rows["duration"][~tasks.collectives(rows)].sum())
    everything = int(rows["duration"].sum())
    if total and min(abs(total - counted), abs(total - everything)) > 0.01 * total:
        notes.append(
            f"{export.folder.name}: op_statistic adds up to {total / 1e6:.3f} ms, the rows of op_summary to "
            f"{counted / 1e6:.3f} ms without collectives. Rows are missing or duplicated; export it again."
        )


def _with_launches(
    rows: pd.DataFrame, lines: list[timeline.Timeline], device: int | None = None
) -> pd.DataFrame:
    """Add launch times from msprof's host-to-device arrows, matched by the start of the kernel.

    Args:
        device: the device of the rows; None for all devices.
    """
    arrows = [
        ends_and_begins
        for line in lines
        for owner, ends_and_begins in line.arrows.items()
        if None in (owner, device) or owner == device
    ]
    if not arrows:
        return rows
    ends, begins = map(np.concatenate, zip(*arrows, strict=True))
    order = np.argsort(ends, kind="stable")
    ends, begins = ends[order], begins[order]
    start = rows["start"].to_numpy()
    behind = np.minimum(np.searchsorted(ends, start), len(ends) - 1)
    before = np.maximum(behind - 1, 0)
    at = np.where(np.abs(ends[before] - start) < np.abs(ends[behind] - start), before, behind)
    near = np.abs(ends[at] - start) <= _SAME_START
    return rows.assign(launched=np.where(near & (rows["launched"] < 0), begins[at], rows["launched"]))


def _newest(traces: list[tuple[int | None, Path]], notes: list[str]) -> list[tuple[int | None, Path]]:
    """The newest trace of each rank; several traces without a rank count as separate ranks."""
    newest: dict[object, tuple[int | None, Path]] = {}
    for rank, path in sorted(traces, key=lambda trace: (trace[1].stat().st_mtime_ns, trace[1].name)):
        owner = rank if rank is not None else path.name.partition("_time_")[0]
        if owner in newest:
            notes.append(f"{newest[owner][1].name} is an older trace of the same rank and was skipped.")
        newest[owner] = (rank, path)
    return list(newest.values())


def _add_paddle(ranks: dict[int, RankTrace], rank: int | None, path: Path, notes: list[str]) -> None:
    """Add the steps and memory of a Paddle trace to a rank; without msprof files, also its tasks."""
    line = _timeline(path, notes)
    if line is None:
        return
    if rank is None:
        rank = next(iter(ranks)) if len(ranks) == 1 else next(iter(line.devices), None)
        rank = len(ranks) if rank is None else rank
    trace = ranks.get(rank)
    if trace is None:
        if not line.devices:
            notes.append(
                f"{path.name} has no kernels and was skipped; Paddle does not time the kernels of an NPU."
            )
            return
        rows = tasks.joined(list(line.devices.values()))
        if not tasks.collectives(rows).any():
            rows = tasks.joined([rows, *line.collectives.values()])
        trace = ranks[rank] = RankTrace(rank, _with_launches(rows, [line]), path)
    trace.sources.append(path.name)
    shift = _shift(trace.tasks, line, path, notes)
    trace.steps = [(name, start + shift, end + shift) for name, start, end in line.steps]
    trace.data_loading = tuple(times + shift for times in line.data_loading)
    trace.transfers, trace.parts = (
        {name: (starts + shift, ends + shift) for name, (starts, ends) in events.items()}
        for events in (line.transfers, line.parts)
    )
    if len(line.memory[0]) and not trace.memory[1].any():
        trace.memory = (line.memory[0] + shift, *line.memory[1:])


def _shift(rows: pd.DataFrame, line: timeline.Timeline, path: Path, notes: list[str]) -> int:
    """The offset of the host's times: 0, or the difference of the ends for unrelated clocks."""
    if not line.steps or not len(rows):
        return 0
    first, last = int(rows["start"].min()), int((rows["start"] + rows["duration"]).max())
    begin, end = line.steps[0][1], max(step[2] for step in line.steps)
    if begin < last and first < end:
        return 0
    notes.append(
        f"{path.name} and the device use unrelated clocks. The steps were shifted to end with the last "
        "kernel, so their boundaries are approximate."
    )
    return last - end
