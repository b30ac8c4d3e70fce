"""User-supplied paths, and the home folder. Importing this module imports no framework."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path


def expanded(text: str) -> str:
    """``text`` with ``~`` as the home folder: shells do not expand it in ``--flag=~/x`` or in files."""
    return os.path.expanduser(text)


def path_argument(text: str) -> Path:
    """An argparse ``type`` for paths."""
    return Path(expanded(text))


def ensure_home() -> None:
    """Set HOME to a temporary folder, and print a note, if the user has no home folder.

    Libraries write to HOME when they are imported; without it they create a folder named "~".
    """
    home = os.path.expanduser("~")
    if home != "~" and os.path.isdir(home):
        return
    why = "HOME is not set" if home == "~" else f"the home folder {home} does not exist"
    os.environ["HOME"] = tempfile.mkdtemp(prefix="home-")
    atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)
    print(f"note     {why}: this run's caches are in {os.environ['HOME']}", file=sys.stderr)
