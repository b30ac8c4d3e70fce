"""The communication of this process on the virtual NPU: time, transfers, rings of static programs."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from .activation import loaded_plugin


class CommunicationTime(NamedTuple):
    """Seconds since the start, summed over all collectives and transfers of all process groups.

    Attributes:
        busy: from the start of an operation, when its input is ready, to its end. Includes waiting for late
            ranks. Concurrent operations of different groups are added up.
        exposed: time in which a program thread waited for communication or executed it.
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


class Transfer(NamedTuple):
    """Calls of one collective with tensors of one shape and dtype.

    Attributes:
        kind: all_reduce, all_gather, reduce_scatter, all_to_all, send, broadcast (recorded on its root) or
            reduce (recorded on all ranks except its root).
        processes: size of the process group.
    """

    kind: str
    processes: int
    dtype: str
    shape: tuple[int, ...]
    calls: int


def transfers() -> list[Transfer]:
    """All transfers since the start or the last ``reset_transfers``; empty without the virtual NPU.

    Calls of ``paddle.distributed``'s own functions (``all_reduce``, fleet's layers) are not included.
    """
    plugin = loaded_plugin()
    if plugin is None:
        return []
    plugin.virtual_npu_transfers.restype = ctypes.c_size_t
    size = plugin.virtual_npu_transfers(None, ctypes.c_size_t(0)) + 1
    text = ctypes.create_string_buffer(size)
    plugin.virtual_npu_transfers(text, ctypes.c_size_t(size))
    rows = []
    for line in text.value.decode().splitlines():
        kind, processes, dtype, shape, calls = line.split()
        sizes = () if shape == "-" else tuple(map(int, shape.split("x")))
        rows.append(Transfer(kind, int(processes), dtype, sizes, int(calls)))
    return rows


def reset_transfers() -> None:
    """Clears the record."""
    plugin = loaded_plugin()
    if plugin is not None:
        plugin.virtual_npu_reset_transfers()


def prepare_ring(ring: str, device: int) -> None:
    """Makes the collectives of ``ring`` run in the compute stream of ``npu:device``.

    Collectives of static programs need a context that Paddle's wheel does not create.

    Raises ValueError if the communicator does not exist, or if the virtual NPU is not loaded.
    """
    plugin = loaded_plugin()
    if plugin is None:
        raise ValueError("prepare_ring: the virtual NPU is not loaded; activate it before importing paddle.")
    if not plugin.virtual_npu_prepare_ring(ring.encode(), device):
        raise ValueError(f"prepare_ring: there is no communicator for ring {ring!r}; create it first.")
