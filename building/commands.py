"""Runs external programs of the build and reports their output on failure."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from paddle_fused.libraries import SetupError


def find_tools(packages: Mapping[str, str]) -> None:
    """Raises SetupError if a program is not on PATH. ``packages``: program -> Debian package."""
    for program, package in packages.items():
        if shutil.which(program) is None:
            raise SetupError(f"`{program}` is not on PATH.", f"Debian and Ubuntu: apt-get install {package}")


def run(command: Sequence[str | Path], **options) -> str:
    """Returns the command's stdout. Raises SetupError with the last lines of output if it fails."""
    words = [*map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode != 0:
        lines = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
        raise SetupError(f"`{shlex.join(words)}` exited with {done.returncode}:", lines)
    return done.stdout
