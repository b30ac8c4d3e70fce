"""The communication of this process: resharding in dygraph, and collectives of programs."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from .activation import loaded_plugin


class Transfer(NamedTuple):
    """``calls`` calls of the collective ``kind`` among ``processes``, each with a tensor of ``shape``.

    ``kind``: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast (on its root), reduce (on all
    ranks but its root) or send.
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
    found = []
    for line in text.value.decode().splitlines():
        kind, processes, dtype, shape, calls = line.split()
        sizes = () if shape == "-" else tuple(map(int, shape.split("x")))
        found.append(Transfer(kind, int(processes), dtype, sizes, int(calls)))
    return found


def reset_transfers() -> None:
    """Clears the record."""
    plugin = loaded_plugin()
    if plugin is not None:
        plugin.virtual_npu_reset_transfers()
