"""The names that ``--device`` accepts."""

from __future__ import annotations

import difflib
import re

from llm_npu.core.errors import UserError

DEFAULT = "npu"
NAMES = ("npu", "npu:card", "virtual_npu", "cpu")


def checked(device: object) -> str:
    """``device`` if it is one of ``npu`` (a card if there is one, else the virtual NPU), ``npu:N``,
    ``virtual_npu``, ``virtual_npu:N``, ``npu:card`` (no fall-back) and ``cpu``; UserError for anything else.
    """
    if isinstance(device, str) and (device in NAMES or re.fullmatch(r"(virtual_)?npu:\d+", device, re.ASCII)):
        return device
    nearest = difflib.get_close_matches(str(device), NAMES, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    raise UserError(
        f"--device {device} is unknown: give npu, npu:N, npu:card, virtual_npu, virtual_npu:N or cpu{hint}"
    )


def paddle_name(device: str) -> str:
    """What Paddle calls the device: ``npu``, ``npu:N`` or ``cpu``."""
    return "npu" if device == "npu:card" else device.removeprefix("virtual_")
