"""Reads msprof's tables: op_summary (a row per task), op_statistic (a row per operator), memory_record."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pandas as pd

from ..times import FARTHEST, nanoseconds
from . import tasks

# Column: its names in the releases of CANN, without the unit.
COLUMNS = {
    "device": ("Device_id", "Device ID"),
    "stream": ("Stream ID",),
    "name": ("Op Name", "Name"),
    "kind": ("OP Type", "Op Type", "Type"),
    "engine": ("Task Type", "Accelerator Core"),
    "start": ("Task Start Time", "Start Time"),
    "duration": ("Task Duration", "Duration"),
    "shapes": ("Input Shapes",),
    "dtypes": ("Input Data Types",),
    "site": ("Call Site",),  # virtual NPU only
}
_NO_MEMORY = (np.zeros(0, np.int64),) * 3
_UNIT = re.compile(r"\s*\((\w+)\)$")


def read(paths: list[Path], notes: list[str]) -> dict[int | None, pd.DataFrame]:
    """Device: its table of tasks (see ``tasks.table``), from the parts of one export.

    The device is None if the table does not name it. Skipped rows are reported in ``notes``.
    """
    parts = [part for path in paths if (part := _read_part(path, notes)) is not None]
    if not parts:
        return {}
    rows = pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
    found = {}
    for device in rows["device"].unique():
        chosen = rows[rows["device"] == device]
        text = {column: chosen[column].astype("category") for column in tasks.TEXT if column in chosen}
        found[None if device < 0 else int(device)] = tasks.table(chosen["start"], chosen["duration"], **text)
    return found


def _read_part(path: Path, notes: list[str]) -> pd.DataFrame | None:
    columns, units = _columns(path)
    missing = [name for name in ("name", "start", "duration") if name not in columns]
    if missing:
        wanted = ", ".join(f'"{COLUMNS[name][0]}(us)"' for name in missing)
        notes.append(f"{path.name} has no column {wanted} and was skipped: it is empty or not an op_summary.")
        return None
    kinds = {
        columns[name]: ("str" if name in ("start", "duration", "device") else "category") for name in columns
    }
    rows = pd.read_csv(
        path,
        usecols=list(kinds),
        dtype=kinds,
        keep_default_na=False,
        encoding="utf-8-sig",
        index_col=False,
    ).rename(columns={there: here for here, there in columns.items()})
    start = _times(rows["start"], units["start"])
    duration = _times(rows["duration"], units["duration"])
    usable = (start >= 0) & (duration >= 0)
    if unusable := int((~usable).sum()):
        notes.append(f"{path.name}: {unusable} rows without a start or a duration were skipped.")
    rows["start"], rows["duration"] = start, duration
    rows["device"] = _devices(rows["device"]) if "device" in rows else -1
    return rows[usable]


def _columns(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """For each of COLUMNS that the table has: its heading there, and its unit ("" if none is given)."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        heading = file.readline()
    there = pd.read_csv(io.StringIO(heading), index_col=False).columns if heading.strip() else []
    columns, units = {}, {}
    for name, spellings in COLUMNS.items():
        for original in there:
            bare = _UNIT.sub("", original.strip())
            if bare in spellings and name not in columns:
                unit = _UNIT.search(original.strip())
                columns[name], units[name] = original, unit[1] if unit else ""
    return columns, units


def _times(cells: pd.Series, unit: str) -> np.ndarray:
    """Nanoseconds; -1 for a cell without a time.

    Old releases give no unit: their integers are nanoseconds, their decimals microseconds.
    """

    def one(cell: str) -> int:
        try:
            if unit == "ns" or (not unit and "." not in cell):
                found = int(cell)
                return found if abs(found) < FARTHEST else -1
            return nanoseconds(cell)
        except ValueError:
            return -1

    # A truncated table has no text in its last cells.
    return np.fromiter((one(cell) for cell in cells.fillna("")), dtype=np.int64, count=len(cells))


def _devices(cells: pd.Series) -> np.ndarray:
    cells = cells.fillna("").str.strip()
    return cells.map(
        {cell: int(cell) if cell.isdecimal() and len(cell) < 10 else -1 for cell in cells.unique()}
    ).to_numpy()


def statistic_total(paths: list[Path]) -> int | None:
    """The sum of op_statistic's total times, in nanoseconds; None without a table that has them."""
    total = None
    for path in paths:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig", index_col=False)
        rows.columns = [column.strip() for column in rows.columns]
        column = next((column for column in rows if _UNIT.sub("", column) == "Total Time"), None)
        if column:
            total = (total or 0) + int(np.maximum(_times(rows[column], "us"), 0).sum())
    return total


def memory(
    records: list[Path], usage: list[Path], device: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times in ns, bytes in use and bytes reserved on a device.

    From memory_record (``records``), the component with the highest peak; without one, the process's share in
    npu_mem (``usage``), all of it as reserved: the part in use is unknown, and 0.
    """
    found = [_NO_MEMORY]
    columns = ("Timestamp(us)", "Total Allocated(KB)", "Total Reserved(KB)")
    for rows in _of_device(records, columns, device):
        for _, group in rows.groupby("Component") if "Component" in rows else [("", rows)]:
            found.append(_by_time(*(_times(group[column], "us") for column in columns)))
    for rows in _of_device(usage, ("timestamp(us)", "hbm(KB)", "event"), device) if len(found) == 1 else []:
        rows = rows[rows["event"].str.strip().str.lower() == "app"]
        when, held = _times(rows["timestamp(us)"], "us"), _times(rows["hbm(KB)"], "us")
        found.append(_by_time(when, np.zeros_like(held), held))
    return max(found, key=lambda memory: (memory[1].max(initial=-1), memory[2].max(initial=-1)))


def _of_device(paths: list[Path], columns: tuple[str, ...], device: int | None) -> list[pd.DataFrame]:
    """The tables that have ``columns``, without other devices' rows."""
    found = []
    for path in paths:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig", index_col=False)
        rows.columns = [column.strip() for column in rows.columns]
        if "Device_id" in rows and device is not None:
            rows = rows[rows["Device_id"].str.strip() == str(device)]
        if set(columns) <= set(rows.columns) and len(rows):
            found.append(rows)
    return found


def _by_time(when: np.ndarray, used: np.ndarray, reserved: np.ndarray) -> tuple[np.ndarray, ...]:
    """Sorted by time; sizes are given in thousandths of kilobytes, as ``_times`` reads them."""
    order = np.argsort(when, kind="stable")
    return when[order], used[order] * 1024 // 1000, reserved[order] * 1024 // 1000


def devices(paths: list[Path]) -> tuple[str, ...]:
    """The devices that a table's rows name, as text."""
    found = set()
    for path in paths:
        column = _columns(path)[0].get("device")
        if column:
            cells = pd.read_csv(path, usecols=[column], dtype=str, encoding="utf-8-sig", index_col=False)[
                column
            ]
            found |= {str(cell).strip() for cell in cells.unique()}
    return tuple(sorted(found))
