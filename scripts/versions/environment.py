"""An environment with one release of Paddle, into which this project is installed as a user would do it."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .commands import Ended, run
from .results import FAILED, YES, Outcome

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "paddle-ascend-llm"
CHECK = "import sys; print('.'.join(map(str, sys.version_info[:3])))"


class CannotStart(Exception):
    """The environment cannot be made; the message says why."""


def default_python() -> str:
    """Python 3.10, for which every release has a wheel, if it is installed; else the running one."""
    found = shutil.which("python3.10")
    return found if found and python_version(found) else sys.executable


def python_version(python: str) -> str:
    """3.10.13; empty if ``python`` does not run, such as a pyenv shim of a missing version."""
    try:
        done = subprocess.run([python, "-c", CHECK], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


class Environment:
    """A virtual environment in ``folder``; the output of its commands is kept in ``logs``."""

    def __init__(self, folder: Path, logs: Path):
        self.folder, self.logs = folder, logs
        self.python = str(folder / "bin" / "python")
        self._numbers = itertools.count(1)

    def run(
        self, name: str, *arguments: object, limit: float, folder: Path | None = None, **options
    ) -> Ended:
        """Runs this environment's Python; ``name`` is that of the log."""
        log = self.logs / f"{next(self._numbers):02d}-{name}.txt"
        return run([self.python, *map(str, arguments)], log, limit, folder or self.folder, **options)

    def pip(self, name: str, *arguments: object, limit: float = 600) -> Ended:
        options = ("--disable-pip-version-check", "--no-input")
        return self.run(f"pip-{name}", "-m", "pip", *options, *arguments, limit=limit)

    def packages(self) -> dict[str, str]:
        """The names and versions of the installed packages, without this project."""
        return frozen(self.pip("freeze", "freeze").text)

    def version(self) -> str:
        return python_version(self.python)


def frozen(text: str) -> dict[str, str]:
    """{name: version} of the output of ``pip freeze``, without this project."""
    pairs = re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE)
    return {name.lower(): version for name, version in pairs if name != PROJECT}


def fresh(folder: Path, logs: Path, python: str) -> Environment:
    """A new environment, empty except for the newest pip.

    Python 3.10 comes with pip 23.0, which installs PaddleNLP's seqeval by its setup.py, and that fails with a
    new setuptools ("No module named 'vcs_versioning'").
    """
    done = run([python, "-m", "venv", "--clear", str(folder)], logs / "00-venv.txt", limit=600)
    if done.code != 0:
        raise CannotStart(f"{python} makes no environment: {done.last_line}")
    environment = Environment(folder, logs)
    done = environment.pip("pip", "install", "--upgrade", "pip")
    if done.code != 0:
        raise CannotStart(f"pip cannot be upgraded: {done.last_line}")
    return environment


def existing(folder: Path, logs: Path, release: str) -> Environment:
    """An existing environment with ``release`` and this project."""
    environment = Environment(folder, logs)
    if not environment.version():
        raise CannotStart(f"{folder} is not an environment: it has no bin/python that runs.")
    code = "import importlib.metadata; print(importlib.metadata.version('paddlepaddle'))"
    done = environment.run("release", "-c", code, limit=60)
    if done.last_line != release:
        raise CannotStart(f"{folder} has paddlepaddle {done.last_line}, not {release}.")
    return environment


def clone(folder: Path, logs: Path) -> str:
    """Clones this repository's last commit to ``folder``, as a user would; returns the commit's hash."""
    if folder.exists():
        shutil.rmtree(folder)
    done = run(["git", "clone", "-q", str(ROOT), str(folder)], logs / "00-clone.txt", limit=600)
    if done.code != 0:
        raise CannotStart(f"{ROOT} cannot be cloned: {done.last_line}")
    return run(["git", "rev-parse", "--short", "HEAD"], logs / "00-commit.txt", 60, folder).last_line


def install(environment: Environment, release: str, sources: Path) -> Outcome:
    """Installs Paddle, then this project; returns whether Paddle is unchanged. CannotStart without either."""
    done = environment.pip("paddle", "install", f"paddlepaddle=={release}", limit=3600)
    if done.code != 0:
        raise CannotStart(f"paddlepaddle {release} cannot be installed ({done.how}): {done.last_line}")
    before = environment.packages()
    done = environment.pip("project", "install", f"{sources}[paddlenlp,test]", limit=7200)
    if done.code != 0:
        raise CannotStart(f"pip fails beside paddlepaddle {release} ({done.how}): {done.last_line}")
    return kept(before, environment.packages())


def kept(before: dict[str, str], after: dict[str, str]) -> Outcome:
    """Whether Paddle is unchanged after an installation, and the other changed packages."""
    changed = [
        f"{name} {version} became {after.get(name, 'none')}"
        for name, version in sorted(before.items())
        if after.get(name) != version
    ]
    there = "paddlepaddle" in before and after.get("paddlepaddle") == before["paddlepaddle"]
    return Outcome(YES if there else FAILED, "; ".join(changed) or "no package became another")
