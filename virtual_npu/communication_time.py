"""The communication time of this process, and how much of it blocked the program."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from .activation import loaded_plugin


class CommunicationTime(NamedTuple):
    """Seconds since the start, summed over all collectives and transfers of all process groups.

    ``busy``: from the start of an operation, when its input is ready, to its end, including the wait for late
    ranks. Concurrent operations of different groups each count. ``exposed``: the time that a thread of the
    program waited for communication, or executed it.
    """

    busy: float
    exposed: float

    def since(self, earlier: CommunicationTime) -> CommunicationTime:
        """The time added since ``earlier``."""
        return CommunicationTime(self.busy - earlier.busy, self.exposed - earlier.exposed)


def communication_time() -> CommunicationTime:
    """The times so far; zeros if the virtual NPU is not loaded."""
    plugin = loaded_plugin()
    busy, exposed = ctypes.c_double(), ctypes.c_double()
    if plugin is not None:
        plugin.virtual_npu_communication_time(ctypes.byref(busy), ctypes.byref(exposed))
    return CommunicationTime(busy.value, exposed.value)
