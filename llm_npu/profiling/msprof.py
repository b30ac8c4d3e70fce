"""``msprof --export=on``, CANN's tool: turns a card's raw profile into tables and a timeline."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from llm_npu.core.errors import UserError

OUTPUT = "mindstudio_profiler_output"


def check() -> None:
    """ValueError with one sentence unless msprof can be run."""
    if shutil.which("msprof") is None:
        raise UserError(
            "A card's profile is read by CANN's tool msprof, which is not on PATH. Source CANN's set_env.sh "
            "(in /usr/local/Ascend/ascend-toolkit), or add .../tools/profiler/bin to PATH."
        )


def export(profile: Path) -> Path:
    """Let msprof write ``profile``/mindstudio_profiler_output, which is returned.

    ValueError if msprof is missing, RuntimeError with its last words if it fails or writes no timeline.
    """
    check()
    command = ["msprof", "--export=on", f"--output={profile}"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if done.returncode != 0 or not timelines([profile]):
        raise RuntimeError(
            f"{' '.join(command)} ended with {done.returncode} and without a timeline in {profile / OUTPUT}: "
            f"{done.stdout.strip()[-1000:] or 'it said nothing'}"
        )
    return profile / OUTPUT


def timelines(profiles: list[Path]) -> list[Path]:
    """The Chrome traces of exported profiles: msprof cuts a long one into slices."""
    return [file for profile in profiles for file in sorted((profile / OUTPUT).glob("msprof_*.json"))]


def summaries(profiles: list[Path]) -> list[Path]:
    """The tables op_summary of exported profiles."""
    return [file for profile in profiles for file in sorted((profile / OUTPUT).glob("op_summary_*.csv"))]
