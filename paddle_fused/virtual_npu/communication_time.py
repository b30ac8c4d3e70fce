"""How long this process has communicated, and how much of that has held the program up."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from .activation import loaded_plugin


class CommunicationTime(NamedTuple):
    """Seconds since the start, over all collectives and transfers of all groups of processes.

    ``busy``: from their beginning, when their input is there, to their end; the wait for ranks that are late
    is part of it, and groups that communicate at the same time count each. ``exposed``: in which a thread of
    the program waited for them, or carried them out itself.
    """

    busy: float
    exposed: float

    def since(self, earlier: CommunicationTime) -> CommunicationTime:
        """What has been added since ``earlier``."""
        return CommunicationTime(self.busy - earlier.busy, self.exposed - earlier.exposed)


def communication_time() -> CommunicationTime:
    """The times so far; zeros where the virtual NPU is not loaded."""
    plugin = loaded_plugin()
    busy, exposed = ctypes.c_double(), ctypes.c_double()
    if plugin is not None:
        plugin.virtual_npu_communication_time(ctypes.byref(busy), ctypes.byref(exposed))
    return CommunicationTime(busy.value, exposed.value)
