"""Writes what Paddle's ``export_chrome_tracing`` writes, with its peculiarities.

``ts`` cut to microseconds beside an exact time that counts from elsewhere, durations in names, names of
processes behind the events, a last event that is empty.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

from .msprof import EPOCH

_HOST = 4321


class Trace:
    """A trace under construction; times in microseconds after EPOCH."""

    def __init__(self, epoch: int = EPOCH, offset: str = "0.25"):
        self.events: list[dict] = []
        self._epoch, self._offset = epoch, Decimal(offset)  # the first event's exact time after the epoch

    def add(self, name: str, category: str, start: str | float, duration: str | float, **more) -> None:
        """An event of the host; of device 0 if ``category`` is Kernel."""
        begin = Decimal(str(start)) + self._offset
        length = Decimal(str(duration))
        device = category == "Kernel"
        arguments = {"start_time": f"{begin:.3f} us", "end_time": f"{begin + length:.3f} us", **more}
        self.events.append(
            {
                "name": f"{name}[{length / 1000:.3f} ms]",
                "pid": 0 if device else _HOST,
                "tid": 3 if device else f"{_HOST}(C++)",
                "ts": int(self._epoch + Decimal(str(start))),
                "dur": float(length),
                "ph": "X",
                "cat": category,
                "args": arguments,
            }
        )

    def memory(self, time: int, allocated: int, reserved: int, place: str = "Place(npu:0)") -> None:
        """What an allocator holds at a time."""
        sizes = {"current_allocated": allocated, "current_reserved": reserved, "peak_allocated": allocated}
        arguments = {"place": place, "addr": "1234", "increase_bytes": 1, **sizes, "peak_reserved": reserved}
        event = {
            "name": "[memory]",
            "pid": _HOST,
            "tid": f"{_HOST}(C++)",
            "ts": self._epoch + time,
            "ph": "i",
        }
        self.events.append({**event, "cat": "Allocate", "args": arguments})

    def text(self) -> str:
        """The file."""
        names = [(_HOST, f"{_HOST}(C++)", f"Process {_HOST} (CPU)"), (0, 3, "Device 0 (npu)")]
        ends = [
            {"name": "process_name", "pid": process, "tid": thread, "ph": "M", "args": {"name": name}}
            for process, thread, name in names
        ]
        listed = ",\n".join(json.dumps(event) for event in [*self.events, *ends, {}])
        return f'{{\n"schemaVersion": "1.0.2",\n"displayTimeUnit": "ms",\n"traceEvents": [\n{listed}\n]\n}}\n'

    def write(self, folder: Path, name: str = "host_apid_1_time_2024_09_11.paddle_trace.json") -> Path:
        """Writes the file into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(self.text())
        return folder / name
