"""Reads msprof's tables: op_summary (a row per task), op_statistic (a row per operator), memory_record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from .. import classes
from ..times import FARTHEST, LONGEST, nanoseconds, whole
from . import csv_table, tasks
from .csv_table import Column


def _old_time(cell: str) -> int:
    """Old releases write no unit; integers are nanoseconds, decimals microseconds."""
    return nanoseconds(cell) if "." in cell else whole(cell)


def _device(cell: str) -> int:
    cell = cell.strip()
    if not cell.isdecimal() or len(cell) > 9:
        raise ValueError
    return int(cell)


def _bytes(kibibytes: str) -> int:
    thousandths = nanoseconds(kibibytes)
    if abs(thousandths) >= FARTHEST >> 10:
        raise ValueError
    return thousandths * 1024 // 1000


_TIME = {"us": nanoseconds, "ns": whole, "": _old_time}
_SIZE = {"KB": _bytes}
_DEVICE = {"": _device}
_TASKS = {
    "device": Column(("Device_id", "Device ID"), _DEVICE),
    "stream": Column(("Stream ID",)),
    "name": Column(("Op Name", "Name")),
    "kind": Column(("OP Type", "Op Type", "Type")),
    "engine": Column(("Task Type", "Accelerator Core")),
    "start": Column(("Task Start Time", "Start Time"), _TIME),
    "duration": Column(("Task Duration", "Duration"), _TIME),
    "shapes": Column(("Input Shapes",), commas=re.compile(r'"*[\d,; ]*"*')),
    "dtypes": Column(("Input Data Types",)),
    "site": Column(("Call Site",)),  # virtual NPU only
}
_SHAPES = {
    **{name: _TASKS[name] for name in ("name", "start")},
    **{
        f"{side} {what}": Column((f"{side} {what}",))
        for side in ("Input", "Output")
        for what in ("Shapes", "Data Types")
    },
}
_STATISTIC = {"time": Column(("Total Time",), _TIME)}
_RECORDS = {
    "device": Column(("Device_id",), _DEVICE),
    "component": Column(("Component",)),
    "when": Column(("Timestamp",), _TIME),
    "used": Column(("Total Allocated",), _SIZE),
    "held": Column(("Total Reserved",), _SIZE),
}
_USAGE = {
    "device": Column(("Device_id",), _DEVICE),
    "event": Column(("event",)),
    "when": Column(("timestamp",), _TIME),
    "held": Column(("hbm",), _SIZE),
}
_NO_MEMORY = (np.zeros(0, np.int64),) * 3


def read(paths: list[Path], notes: list[str]) -> dict[int | None, pd.DataFrame]:
    """The table of tasks (see ``tasks.table``) of each device, from the parts of an export.

    The device is None if the table does not name it. Skipped rows are reported in ``notes``.
    """
    parts = [part for path in paths if (part := _tasks(path, notes)) is not None]
    tables_of: dict[int | None, list[pd.DataFrame]] = {}
    for part in parts:
        for device in part["device"].unique():
            rows = part[part["device"] == device]
            text = {column: rows[column] for column in tasks.TEXT if column in rows}
            table = tasks.table(rows["start"], rows["duration"], **text)
            tables_of.setdefault(None if device < 0 else int(device), []).append(table)
    return {device: tasks.joined(tables) for device, tables in tables_of.items()}


def _tasks(path: Path, notes: list[str]) -> pd.DataFrame | None:
    about: list[str] = []
    rows = csv_table.read(path, _TASKS, ("name", "start", "duration"), about)
    if rows is None:
        notes += about
        return None
    usable = (rows["start"] >= 0) & rows["duration"].between(0, LONGEST)
    if unusable := int((~usable).sum()):
        notes.append(f"{path.name}: {unusable} rows without a start or a duration were skipped.")
    notes += about
    rows = rows[usable]
    if "device" not in rows:
        return rows.assign(device=-1)
    nowhere = int((rows["device"] < 0).sum())
    if 0 < nowhere < len(rows):
        notes.append(f"{path.name}: {nowhere} rows do not name their device and count as a separate device.")
    return rows


def shapes(path: Path, notes: list[str]) -> Iterator[tuple[tuple[str, int], dict[str, str]]]:
    """(name, start in ns), and the shapes and dtypes, of each task of a table."""
    rows = csv_table.read(path, _SHAPES, ("name", "start"), notes)
    if rows is None:
        return
    columns = [name for name in rows if name in _SHAPES and name not in _TASKS]
    texts = rows[columns].astype(str).to_dict("records")
    for name, start, cells in zip(rows["name"], rows["start"], texts, strict=True):
        known = {column: cell.strip('"') for column, cell in cells.items() if cell not in classes.UNKNOWN}
        yield (name, start), known


def statistic_total(paths: list[Path], notes: list[str]) -> int | None:
    """The sum of op_statistic's total times in nanoseconds; None without such a table."""
    tables = [csv_table.read(path, _STATISTIC, ("time",), notes) for path in paths]
    # Python integers do not overflow.
    sums = [sum(table["time"].clip(lower=0).tolist()) for table in tables if table is not None]
    return sum(sums) if sums else None


def memory(
    records: list[Path], usage: list[Path], device: int | None, notes: list[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times in ns, bytes in use and bytes reserved on a device.

    Uses the component of memory_record (``records``) with the highest peak; without records, the process's
    share in npu_mem (``usage``), which counts as reserved, with 0 bytes in use.
    """
    candidates = [_NO_MEMORY]
    for rows in _of_device(records, _RECORDS, ("when", "used", "held"), device, notes):
        groups = rows.groupby("component", observed=True) if "component" in rows else [("", rows)]
        candidates += [_by_time(group["when"], group["used"], group["held"]) for _, group in groups]
    if len(candidates) == 1:
        for rows in _of_device(usage, _USAGE, ("when", "held", "event"), device, notes):
            rows = rows[rows["event"].str.strip().str.lower() == "app"]
            candidates.append(_by_time(rows["when"], 0 * rows["held"], rows["held"]))
    return max(candidates, key=lambda memory: (memory[1].max(initial=-1), memory[2].max(initial=-1)))


def _of_device(paths: list[Path], columns, needed, device: int | None, notes: list[str]):
    """The tables with the ``needed`` columns, reduced to the rows of the device."""
    for path in paths:
        rows = csv_table.read(path, columns, needed, notes)
        if rows is None:
            continue
        numbers = [name for name in ("when", "used", "held") if name in rows]
        usable = (rows[numbers] >= 0).all(axis=1)
        if unusable := int((~usable).sum()):
            notes.append(f"{path.name}: {unusable} rows without a time or a size were skipped.")
        rows = rows[usable]
        if "device" in rows and device is not None:
            rows = rows[rows["device"] == device]
        if len(rows):
            yield rows


def _by_time(when: pd.Series, used: pd.Series, held: pd.Series) -> tuple[np.ndarray, ...]:
    order = np.argsort(when.to_numpy(), kind="stable")
    return when.to_numpy()[order], used.to_numpy()[order], held.to_numpy()[order]


def devices(paths: list[Path]) -> tuple[str, ...]:
    """The devices in a table's rows, as text."""
    names = set()
    for path in paths:
        rows = csv_table.read(path, {"device": _TASKS["device"]}, ("device",), [])
        if rows is not None:
            names |= set(map(str, rows["device"].unique()))
    return tuple(sorted(names))
