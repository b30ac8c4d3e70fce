"""Paths that a user writes, and the home folder. Importing this module imports no framework."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path


def expanded(text: str) -> str:
    """``text`` with ``~`` as the home folder: a shell expands it neither in ``--flag=~/x`` nor in a file."""
    return os.path.expanduser(text)


def given(text: str) -> Path:
    """The path of a flag, as a ``type`` for argparse."""
    return Path(expanded(text))


def ensure_home() -> None:
    """Set HOME to a temporary folder, and say so, where the user has none: HOME and the user may be unknown.

    The libraries write into it when they are imported, or else into a folder named "~".
    """
    home = os.path.expanduser("~")
    if home != "~" and os.path.isdir(home):
        return
    why = "HOME is not set" if home == "~" else f"the home folder {home} does not exist"
    os.environ["HOME"] = tempfile.mkdtemp(prefix="home-")
    atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)
    print(f"note     {why}: caches are in {os.environ['HOME']} for this run alone", file=sys.stderr)
