"""Adds up tasks moment by moment: slow, and nothing like the way in which the report does it."""

from __future__ import annotations

from .msprof import Task

COMPUTE = ("attention", "matmul", "vector", "AICPU", "host fall-back")
ORDER = (*COMPUTE, "communication", "copy")
NANOSECONDS = 1000


def totals(tasks: list[tuple[str, Task]]) -> dict[str, int]:
    """Of tasks with their class, whole microseconds only: every total in nanoseconds.

    ``tasks`` sums of durations by class; ``alone`` the moments that a class claims; hidden, exposed, idle.
    """
    first = min(int(task.start) for _, task in tasks)
    last = max(int(task.start) + int(task.duration) for _, task in tasks)
    sums = {f"tasks {name}": 0 for name in ORDER} | {f"alone {name}": 0 for name in ORDER}
    sums |= {"hidden": 0, "exposed": 0, "idle": 0, "window": (last - first) * NANOSECONDS}
    for name, task in tasks:
        sums[f"tasks {name}"] += int(task.duration) * NANOSECONDS
    for moment in range(first, last):
        active = {
            name for name, task in tasks if int(task.start) <= moment < int(task.start) + int(task.duration)
        }
        for name in ORDER:
            if name in active:
                sums[f"alone {name}"] += NANOSECONDS
                break
        if "communication" in active:
            sums["hidden" if active & set(COMPUTE) else "exposed"] += NANOSECONDS
        if not active:
            sums["idle"] += NANOSECONDS
    return sums
