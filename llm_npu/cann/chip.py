"""Families of chips, and how npu-smi and CANN's operator files name them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .needs import read

TOOLS = ("usr/local/sbin", "usr/local/bin")
TIMEOUT = 30.0  # seconds for npu-smi
CONFIG = "built-in/op_impl/ai_core/tbe/config"  # below opp: a folder for each chip


@dataclass(frozen=True)
class Chip:
    """A family of chips.

    Attributes:
        name: "A2", "A3" or "950".
        title: display name.
        soc: pattern of the SoC names (Ascend910B3, Ascend910_9391).
        folder: name of its folder with operator files.
        dies: devices per NPU; npu-smi prints a row for each.
        packages: names of CANN's operator packages up to 8.3.RC1 and from 8.5.0 on; None if unknown.
        mc2: the first CANN version that documents matmuls fused with collectives (MC2).
        unsupported: why the plugin does not support it; empty if it does.
    """

    name: str
    title: str
    soc: str
    folder: str
    dies: int
    packages: tuple[str | None, str | None]
    mc2: str
    unsupported: str = ""


@cache
def chips() -> dict[str, Chip]:
    """All families by name; sources in ``data/chips.json``."""
    data = read("chips.json")["chips"]
    return {name: Chip(name, **{**row, "packages": tuple(row["packages"])}) for name, row in data.items()}


def of_soc(name: str) -> Chip | None:
    """The family of a SoC such as "Ascend910B3", "910B3", "Ascend910_9391" or "9391"; None if unknown."""
    return next((chip for chip in chips().values() if re.fullmatch(chip.soc, name.strip())), None)


def of_virtual_npu(card: str) -> Chip:
    """The family that the virtual NPU emulates; ``card``: the value of VIRTUAL_NPU_CARD."""
    return chips()[{"910b": "A2", "910c": "A3"}.get(card, card)]


# | 0     910B2               | OK            | 93.6        40                0    / 0             |
# | 0                         | 0000:C1:00.0  | 0           0    / 0          3368 / 65536         |
ROW = re.compile(r"^\|\s*(\d+)\s+(\S+)\s*\|\s*(OK|Warning|Alarm|Critical|UNKNOWN)\s*\|", re.MULTILINE)


def npu_smi(
    environ: Mapping[str, str], root: Path, *arguments: str
) -> subprocess.CompletedProcess[str] | None:
    """The result of ``npu-smi info``; None if the tool is not installed.

    If it fails or times out, the return code is 1, and stderr contains the reason.
    """
    names = [path for folder in TOOLS if os.access(path := root / folder / "npu-smi", os.X_OK)]
    tool = names[0] if names else shutil.which("npu-smi", path=environ.get("PATH"))
    if tool is None:
        return None
    command = [str(tool), "info", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as failure:
        return subprocess.CompletedProcess(command, 1, "", str(failure))


def of_machine(environ: Mapping[str, str], root: Path, info: str | None = None) -> Chip | None:
    """The family of this machine's cards. ``info``: the output of ``npu-smi info``, if available."""
    if info is None:
        done = npu_smi(environ, root)
        info = done.stdout if done else ""
    if chip := of_npu_smi(info):
        return chip
    board = npu_smi(environ, root, "-t", "board", "-i", "0", "-c", "0")
    return of_board(board.stdout) if board else None


def of_npu_smi(text: str) -> Chip | None:
    """The family of the cards in the output of ``npu-smi info``; None if it is unclear.

    npu-smi calls a 910C "Ascend910", like the original 910, but prints two rows with the same NPU number, one
    per die.
    """
    rows = ROW.findall(text)
    families = {of_soc(name) for _, name, _ in rows} - {None}
    if len(families) == 1:
        return families.pop()
    numbers = [number for number, name, _ in rows if name == "Ascend910"]
    two_dies = bool(numbers) and all(numbers.count(number) == 2 for number in numbers)
    return chips()["A3"] if two_dies else None


def of_board(text: str) -> Chip | None:
    """The family in the output of ``npu-smi info -t board -i 0 -c 0``."""
    names = re.findall(r"^\s*(?:NPU Name|Chip Name|Chip Type)\s*:\s*(\S+)", text, re.MULTILINE)
    return next((chip for name in names if (chip := of_soc(name))), None)


def of_operator_files(opp: Path) -> list[Chip]:
    """The families with operator files in CANN's folder ``opp``."""
    return [chip for chip in chips().values() if any((opp / CONFIG / chip.folder).glob("*.json"))]


def titles(families: Iterable[Chip]) -> str:
    return ", ".join(chip.title for chip in families) or "no chip"
