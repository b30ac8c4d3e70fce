"""Converts a card's raw profile into tables and a timeline with CANN's ``msprof --export=on``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from llm_npu.core.errors import UserError

OUTPUT = "mindstudio_profiler_output"


def check() -> None:
    """Raises ValueError if msprof is not on PATH."""
    if shutil.which("msprof") is None:
        raise UserError(
            "Reading a card's profile needs CANN's tool msprof, which is not on PATH. Source CANN's "
            "set_env.sh (in /usr/local/Ascend/ascend-toolkit), or add .../tools/profiler/bin to PATH."
        )


def export(profile: Path) -> Path:
    """Run msprof to write ``profile``/mindstudio_profiler_output, and return that path.

    Raises ValueError if msprof is missing, and RuntimeError with the end of its output if it fails or writes
    no timeline.
    """
    check()
    command = ["msprof", "--export=on", f"--output={profile}"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if done.returncode != 0 or not timelines([profile]):
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode} without a timeline in {profile / OUTPUT}: "
            f"{done.stdout.strip()[-1000:] or 'no output'}"
        )
    return profile / OUTPUT


def timelines(profiles: list[Path]) -> list[Path]:
    """The Chrome traces of exported profiles; msprof splits a long one into slices."""
    return [file for profile in profiles for file in sorted((profile / OUTPUT).glob("msprof_*.json"))]


def summaries(profiles: list[Path]) -> list[Path]:
    """The op_summary tables of exported profiles."""
    return [file for profile in profiles for file in sorted((profile / OUTPUT).glob("op_summary_*.csv"))]
