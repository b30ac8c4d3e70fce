"""The PEP 517 backend: setuptools' backend, preceded by a search for the installed Paddle.

Problems that would fail the build are reported before anything is built, downloaded or replaced.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 (the unchanged hooks)

from paddle_fused.libraries import SetupError

from . import installed_paddle, native


def _check_python() -> None:
    """Raises SetupError for an unsupported Python; pip itself reports it only after all downloads."""
    project = Path("pyproject.toml").read_text()
    oldest, beyond = map(int, re.search(r'^requires-python = ">=3\.(\d+),<3\.(\d+)"', project, re.M).groups())
    major, minor = sys.version_info[:2]
    if major != 3 or not oldest <= minor < beyond:
        raise SetupError(
            f"Python is {major}.{minor}; accepted: 3.{oldest} to 3.{beyond - 1}.",
            f"Create an environment with one of them (python3.{beyond - 2} -m venv .venv) and install there.",
        )


def _requirements() -> list[str]:
    """Build requirements in addition to pyproject.toml."""
    try:
        _check_python()
        missing = installed_paddle.find_paddle() is None
        wanted = native.is_wanted()
    except SetupError as error:
        raise SystemExit(str(error)) from None
    needed = ["cmake>=3.22", "ninja"] if wanted else []
    return [*needed, f"paddlepaddle=={installed_paddle.NEWEST}"] if wanted and missing else needed


def get_requires_for_build_wheel(config_settings=None):
    """For ``pip install .``."""
    return [*_requirements(), *build_meta.get_requires_for_build_wheel(config_settings)]


def get_requires_for_build_editable(config_settings=None):
    """For ``pip install -e .``."""
    return [*_requirements(), *build_meta.get_requires_for_build_editable(config_settings)]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds a wheel of the current sources, without stale modules of an earlier build."""
    shutil.rmtree(Path("build") / "lib", ignore_errors=True)
    for left in Path("build").glob("lib.*"):
        shutil.rmtree(left)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
