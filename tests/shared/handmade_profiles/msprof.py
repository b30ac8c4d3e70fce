"""Writes what ``msprof --export=on`` writes, with its peculiarities.

Times since 1970 as text with three decimals, tabs behind numbers, shapes in quotes of their own, N/A where
there is nothing to say, collectives without a stream, copies in the timeline only.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

EPOCH = 1_726_000_000_123_456  # microseconds; as a double such a number has steps of a quarter
STAMP = "20240911120000"


@dataclass(frozen=True)
class Task:
    """One task; times in microseconds after EPOCH; ``launch`` by the host, None if nobody knows."""

    kind: str
    engine: str
    start: str | float
    duration: str | float
    name: str = ""
    dtypes: str = "DT_BF16;DT_BF16"
    shapes: str = '"4,8;8,2"'
    device: int = 0
    stream: int = 2
    launch: float | None = None

    @property
    def call(self) -> str:
        """What the tables call it."""
        plain = self.engine == "MEMCPY_ASYNC" or "_" in self.kind  # CANN's types have none but collectives
        return self.name or (self.kind if plain else f"aclnn{self.kind}_{self.kind}_{self.kind}")

    @property
    def is_collective(self) -> bool:
        return self.engine in ("HCCL", "COMMUNICATION")


def since_1970(time: str | float) -> str:
    """Microseconds with three decimals."""
    return f"{EPOCH + Decimal(str(time)):.3f}"


def op_summary(tasks: list[Task], **columns: str) -> str:
    """The table; ``columns`` renames columns, or takes them out where the new name is empty."""
    names = [
        "Device_id", "Model ID", "Task ID", "Stream ID", "Op Name", "OP Type", "OP State", "Task Type",
        "Task Start Time(us)", "Task Duration(us)", "Task Wait Time(us)", "Block Dim", "Input Shapes",
        "Input Data Types", "Input Formats",
    ]  # fmt: skip
    kept = [name for name in names if columns.get(name, name)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([columns.get(name, name) for name in kept])
    for number, task in enumerate(tasks):
        if task.engine == "MEMCPY_ASYNC":
            continue
        stream, identity = ("N/A", "N/A") if task.is_collective else (task.stream, number)
        cells = [
            task.device, 4294967295, identity, stream, task.call, task.kind, "dynamic", task.engine,
            since_1970(task.start) + "\t", f"{Decimal(str(task.duration)):.3f}", "0.000", 20, task.shapes,
            task.dtypes, "ND;ND",
        ]  # fmt: skip
        row = dict(zip(names, cells, strict=True))
        writer.writerow([row[name] for name in kept])
    return out.getvalue()


def op_statistic(tasks: list[Task]) -> str:
    """Sums of the tasks by operator type."""
    sums: dict[tuple, list[Decimal]] = {}
    for task in tasks:
        sums.setdefault((task.device, task.kind, task.engine), []).append(Decimal(str(task.duration)))
    lines = [
        "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)"
    ]
    for (device, kind, engine), times in sums.items():
        total = sum(times)
        lines.append(
            f"{device},{kind},{engine},{len(times)},{total},{min(times)},{total / len(times)},{max(times)},0"
        )
    return "\n".join(lines) + "\n"


def events(tasks: list[Task]) -> list[dict]:
    """The timeline: launches, arrows, tasks of the hardware; collectives and their transfers apart."""
    rows = []
    for device in sorted({task.device for task in tasks}):
        hardware, layer = 100 + device, 200 + device
        for process, name in ((hardware, "Ascend Hardware"), (layer, "Communication")):
            labels = f"NPU {device}"
            rows.append({"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": name}})
            rows.append(
                {"name": "process_labels", "ph": "M", "pid": process, "tid": 0, "args": {"labels": labels}}
            )
        for thread, name in ((0, "Group 0 Communication"), (1, "Plane 0")):
            rows.append(
                {"name": "thread_name", "ph": "M", "pid": layer, "tid": thread, "args": {"name": name}}
            )
    rows.append({"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "CANN"}})
    for number, task in enumerate(tasks):
        process = (200 if task.is_collective else 100) + task.device
        thread = 0 if task.is_collective else task.stream
        event = {"name": task.call, "ph": "X", "pid": process, "tid": thread, "ts": since_1970(task.start)}
        event |= {
            "dur": float(task.duration),
            "args": {} if task.is_collective else {"Task Type": task.engine},
        }
        rows.append(event)
        if task.is_collective:  # once more, as the transfers it is made of
            rows.append({**event, "name": "Memcpy", "tid": 1})
        if task.launch is not None:
            arrow = {"name": f"HostToDevice{number}", "cat": "HostToDevice", "id": str(number)}
            host = {"pid": 1, "tid": 7, "ts": since_1970(task.launch)}
            rows.append({"name": "Node@launch", "ph": "X", "dur": 0.5, "args": {}, **host})
            rows.append({**arrow, "ph": "s", **host})
            rows.append(
                {**arrow, "ph": "f", "bp": "e", "pid": process, "tid": thread, "ts": since_1970(task.start)}
            )
    return rows


def write(folder: Path, tasks: list[Task], stamp: str = STAMP) -> Path:
    """A whole PROF_ folder, whose path is ``folder``; returns the folder of the exported files."""
    output = folder / "mindstudio_profiler_output"
    output.mkdir(parents=True, exist_ok=True)
    (output / f"op_summary_{stamp}.csv").write_text(op_summary(tasks))
    (output / f"op_statistic_{stamp}.csv").write_text(op_statistic(tasks))
    (output / f"msprof_{stamp}.json").write_text(json.dumps(events(tasks)))
    return output
