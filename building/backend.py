"""What pip calls (PEP 517): setuptools' backend, which first looks for the Paddle that is there.

Everything that would end the build is found here, before anything is built, downloaded or replaced.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403 (the hooks that stay as they are)

from paddle_fused.libraries import SetupError

from . import native, paddle_there


def _requirements() -> list[str]:
    """What a build needs beside what pyproject.toml names."""
    try:
        missing = paddle_there.paddle_there() is None
        wanted = native.is_wanted()
    except SetupError as error:
        raise SystemExit(str(error)) from None
    needed = ["cmake>=3.22", "ninja"] if wanted else []
    return [*needed, f"paddlepaddle=={paddle_there.NEWEST}"] if wanted and missing else needed


def get_requires_for_build_wheel(config_settings=None):
    """Of ``pip install .``."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_requirements()]


def get_requires_for_build_editable(config_settings=None):
    """Of ``pip install -e .``."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_requirements()]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """A wheel of the sources as they are: not of a module that an earlier build has left behind."""
    shutil.rmtree(Path("build") / "lib", ignore_errors=True)
    for left in Path("build").glob("lib.*"):
        shutil.rmtree(left)
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
