"""The optimizer steps in ``--profile steps=10:13,shapes`` and ``--dump_tensors 1:3``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llm_npu.core.errors import UserError

OPTIONS = ("shapes", "memory", "call_sites")
ACCEPTED = "steps=10:13 (steps 10, 11 and 12), then any of ,warmup=2 ,shapes ,memory ,call_sites"
FOLDER = "profile"  # in the output folder


@dataclass(frozen=True)
class ProfileWindow:
    """Steps ``first`` to ``last``, counted from 1; the profiler starts ``warmup`` steps earlier."""

    first: int
    last: int
    warmup: int = 1
    shapes: bool = False
    memory: bool = False
    call_sites: bool = False

    def __str__(self) -> str:
        return f"steps {self.first} to {self.last}"


def profile_window(text: str) -> ProfileWindow:
    """The window that ``text`` describes. As in Python, the step after the colon is excluded.

    UserError with one sentence for anything else.
    """
    found: dict[str, int | bool] = {}
    for part in text.split(","):
        if match := re.fullmatch(r"steps=(\d+):(\d+)", part, re.ASCII):
            asked = {"first": int(match[1]), "last": int(match[2]) - 1}
        elif match := re.fullmatch(r"warmup=(\d+)", part, re.ASCII):
            asked = {"warmup": int(match[1])}
        elif part in OPTIONS:
            asked = {part: True}
        else:
            raise UserError(
                f"--profile is {text!r}, in which {part!r} is not understood; accepted: {ACCEPTED}"
            )
        if found.keys() & asked.keys():
            raise UserError(f"--profile is {text!r}, which gives {part.partition('=')[0]} twice")
        found |= asked
    if "first" not in found:
        raise UserError(f"--profile is {text!r}, which names no steps; accepted: {ACCEPTED}")
    if not 1 <= found["first"] <= found["last"]:
        raise UserError(
            f"--profile is {text!r}, which holds no step: steps count from 1, and the one after the colon "
            "is not recorded"
        )
    return ProfileWindow(**found)


def steps_of(text: str) -> range:
    """The steps of ``--dump_tensors``: ``3``, or ``1:3`` for 1, 2 and 3. UserError otherwise."""
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text, re.ASCII)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise UserError(
            f"--dump_tensors is {text}: give one step, or the first and the last one, such as 1:3"
        )
    return range(first, last + 1)
