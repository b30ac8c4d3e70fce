"""Compiles the small C libraries of this package."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from llm_npu.core.errors import UserError


def build_library(file: Path, name: str, arguments: list[str]) -> None:
    """Build the shared library ``file`` with the soname ``name``.

    Raises UserError if the compiler is missing or fails.
    """
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        raise UserError(
            "no C compiler (cc, gcc or clang) is on PATH; install one, for example with `apt-get install gcc`"
        )
    command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(file), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(f"{compiler} cannot build {name}: {lines[-1]}")
