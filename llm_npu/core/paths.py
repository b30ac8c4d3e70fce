"""Paths that a user writes. Importing this module imports no framework."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(text: str) -> str:
    """``text`` with ``~`` as the home folder: a shell expands it neither in ``--flag=~/x`` nor in a file."""
    return os.path.expanduser(text)


def given(text: str) -> Path:
    """The path of a flag, as a ``type`` for argparse."""
    return Path(expanded(text))
