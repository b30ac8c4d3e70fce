"""Flags with a value syntax: --device, --split, --profile, --dump_tensors, --offload_activations and
--expert_overlap.

Each function raises UserError for an invalid value.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

import virtual_npu
from llm_npu.core.errors import UserError

DEVICES = ("npu", "npu:card", "virtual_npu", "cpu")
PROFILE_OPTIONS = ("shapes", "memory", "call_sites")
PROFILE_ACCEPTED = "steps=10:13 (steps 10, 11 and 12), then any of ,warmup=2 ,shapes ,memory ,call_sites"
PROFILE_FOLDER = "profile"  # in the output folder


def check_device(device: str) -> None:
    """Accept ``npu`` (a card if there is one, else the virtual NPU), ``npu:N``, ``npu:card`` (no fallback),
    ``virtual_npu``, ``virtual_npu:N`` and ``cpu``.
    """
    if device in DEVICES or re.fullmatch(r"(virtual_)?npu:\d+", device, re.ASCII):
        return
    nearest = difflib.get_close_matches(device, DEVICES, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    raise UserError(
        f"--device is {device}; accepted: npu, npu:N, npu:card, virtual_npu, virtual_npu:N or cpu{hint}"
    )


def check_device_checks(checks: str) -> None:
    """Accept one or more of race, init, memory and sync, separated by commas, each at most once."""
    names = checks.split(",")
    if len(set(names)) < len(names) or not set(names) <= set(virtual_npu.CHECKS):
        raise UserError(
            f"--check_device is {checks!r}; accepted: one or more of {', '.join(virtual_npu.CHECKS)}, "
            "separated by commas, each once"
        )


def paddle_name(device: str) -> str:
    """Paddle's name of the device: ``npu``, ``npu:N`` or ``cpu``."""
    return "npu" if device == "npu:card" else device.removeprefix("virtual_")


def split_weights(split: str) -> tuple[float, float, float]:
    """``949,50,1`` (or ``949/50/1``) -> the fractions of training, validation and test documents."""
    parts = split.replace("/", ",").split(",")
    try:
        weights = [float(part) for part in parts]
    except ValueError:
        weights = []
    if (
        not 1 <= len(weights) <= 3
        or not all(0 <= weight < math.inf for weight in weights)
        or not sum(weights)
    ):
        raise UserError(
            f"--split is {split!r}, but must be up to three weights of 0 or more for training, validation "
            "and test, such as 949,50,1"
        )
    if not weights[0]:
        raise UserError(f"--split is {split!r}, which leaves nothing for training; raise the first weight")
    weights += [0.0] * (3 - len(weights))
    return tuple(weight / sum(weights) for weight in weights)


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
    """Parse a window. As in a Python slice, the step after the colon is excluded."""
    fields: dict[str, int | bool] = {}
    for part in text.split(","):
        if match := re.fullmatch(r"steps=(\d+):(\d+)", part, re.ASCII):
            new = {"first": int(match[1]), "last": int(match[2]) - 1}
        elif match := re.fullmatch(r"warmup=(\d+)", part, re.ASCII):
            new = {"warmup": int(match[1])}
        elif part in PROFILE_OPTIONS:
            new = {part: True}
        else:
            raise UserError(f"--profile is {text!r}, but {part!r} is invalid; accepted: {PROFILE_ACCEPTED}")
        if fields.keys() & new.keys():
            raise UserError(f"--profile is {text!r}, which sets {part.partition('=')[0]} twice")
        fields |= new
    if "first" not in fields:
        raise UserError(f"--profile is {text!r}, which lacks steps; accepted: {PROFILE_ACCEPTED}")
    if not 1 <= fields["first"] <= fields["last"]:
        raise UserError(
            f"--profile is {text!r}, which selects no step: steps count from 1, and the step after the colon "
            "is excluded"
        )
    return ProfileWindow(**fields)


def check_expert_overlap(text: str) -> None:
    """Accept ``auto``, ``serial`` and ``pipelined:N`` with N from 1 to 64."""
    match = re.fullmatch(r"auto|serial|pipelined:(\d{1,2})", text, re.ASCII)
    if match is None or not 1 <= int(match[1] or 1) <= 64:
        raise UserError(
            f"--expert_overlap is {text!r}; accepted: auto, serial, or pipelined with a number of groups, "
            "such as pipelined:4"
        )


def dumped_steps(text: str) -> range:
    """The steps of ``--dump_tensors``: ``3``, or ``1:3`` for 1, 2 and 3."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text, re.ASCII)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise UserError(
            f"--dump_tensors is {text}; use one step, or the first and the last step, such as 1:3"
        )
    return range(first, last + 1)


def layer_range(text: str) -> slice:
    """The layers of ``--offload_activations``: ``all``, ``3``, or a Python slice such as 0:32:2."""
    if text == "all":
        return slice(None)
    match = re.fullmatch(r"(\d{1,6})(?:(:)(\d{1,6})(?::([1-9]\d{0,5}))?)?", text, re.ASCII)
    if not match:
        raise UserError(
            f"--offload_activations is {text!r}; use all, one layer, or layers such as 0:16 (0 to 15) or "
            "0:32:2 (every second one)"
        )
    first = int(match[1])
    return slice(first, int(match[3]) if match[2] else first + 1, int(match[4] or 1))
