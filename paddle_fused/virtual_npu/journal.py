"""Dry runs, and the journal of what the device was asked to do (VIRTUAL_NPU_DRY, VIRTUAL_NPU_JOURNAL)."""

from __future__ import annotations

import os
from pathlib import Path

from .activation import is_active, loaded_plugin


def is_dry() -> bool:
    """Whether the device accounts for what it is asked to do and computes none of it."""
    return os.environ.get("VIRTUAL_NPU_DRY") == "1" and is_active()


def journal_file() -> Path | None:
    """The file of this process's journal; None if none is kept. Of several ranks each has its own."""
    name = os.environ.get("VIRTUAL_NPU_JOURNAL")
    if not name or not is_active():
        return None
    several = int(os.environ.get("PADDLE_TRAINERS_NUM") or 1) > 1
    return Path(f"{name}.{os.environ['PADDLE_TRAINER_ID']}" if several else name)


def mark_journal(text: str) -> None:
    """Write a mark into the journal, such as "step 1 begins"; nothing where none is kept."""
    plugin = loaded_plugin()
    if plugin is not None and journal_file() is not None:
        plugin.virtual_npu_journal_mark(text.encode())


def flush_journal() -> None:
    """Have all lines so far in the file."""
    plugin = loaded_plugin()
    if plugin is not None:
        plugin.virtual_npu_journal_flush()
