"""Dry runs and the journal of the device (VIRTUAL_NPU_DRY, VIRTUAL_NPU_JOURNAL)."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from .activation import is_active, loaded_plugin


def is_dry() -> bool:
    """Whether the device only accounts for operations, without computing them."""
    return os.environ.get("VIRTUAL_NPU_DRY") == "1" and is_active()


def journal_file() -> Path | None:
    """The journal of this process, or None. Each of several ranks has its own file."""
    name = os.environ.get("VIRTUAL_NPU_JOURNAL")
    if not name or not is_active():
        return None
    several = int(os.environ.get("PADDLE_TRAINERS_NUM") or 1) > 1
    return Path(f"{name}.{os.environ['PADDLE_TRAINER_ID']}" if several else name)


def mark_journal(text: str) -> None:
    """Writes a mark such as "step 1 begins" into the journal, if there is one.

    Raises OSError if the journal cannot be written.
    """
    plugin = loaded_plugin()
    if plugin is not None and journal_file() is not None:
        _raise_failure(plugin.virtual_npu_journal_mark, text.encode())


def flush_journal() -> None:
    """Writes all buffered lines to the file. Raises OSError if it cannot be written."""
    plugin = loaded_plugin()
    if plugin is not None:
        _raise_failure(plugin.virtual_npu_journal_flush)


def _raise_failure(function, *arguments) -> None:
    function.restype = ctypes.c_char_p
    if reason := function(*arguments):
        raise OSError(reason.decode())
