"""Finds and runs external programs of the build, and quotes their output if they fail."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from paddle_fused.libraries import SetupError


def find_tools(packages: Mapping[str, str]) -> None:
    """Raises SetupError if a program is missing. The values of the mapping are Debian packages."""
    for program, package in packages.items():
        if shutil.which(program) is None:
            raise SetupError(f"No `{program}` was found.", f"Debian and Ubuntu: apt-get install {package}")


def run(command: Sequence[str | Path], **options) -> str:
    """Returns the command's stdout. Raises SetupError with its last lines if it fails."""
    words = [*map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, **options)
    if done.returncode != 0:
        lines = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
        raise SetupError(f"`{shlex.join(words)}` ended with {done.returncode}:", lines)
    return done.stdout
