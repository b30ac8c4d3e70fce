"""Keeps the memory of freed CPU tensors in the process, so that the next tensors find it there.

Paddle frees a CPU tensor to malloc, and glibc's malloc gives large blocks back to the system at once: every
large result is new memory, whose pages the system clears and maps one by one when they are first written,
which takes longer than to compute it. Applied when the host kernels are loaded, by the layer that serves CPU
tensors: the kernels themselves know pointers only, and the virtual NPU has a pool of its own.
"""

from __future__ import annotations

import ctypes
import os

VARIABLE = "PADDLE_FUSED_MALLOC"
KEEP, SYSTEM = "keep", "system"

# Parameters of glibc's mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = -1


def choice() -> str:
    """``keep``, the default, or ``system``. ValueError if PADDLE_FUSED_MALLOC is neither of them."""
    asked = os.environ.get(VARIABLE) or KEEP
    if asked not in (KEEP, SYSTEM):
        raise ValueError(f"{VARIABLE} is {asked!r}; accepted: {KEEP!r} (the default) and {SYSTEM!r}.")
    return asked


def keep_freed_memory() -> None:
    """Has glibc's malloc keep what is freed, for the whole process; other C libraries stay as they are.

    Nothing changes where ``choice`` is ``system``.
    """
    process = ctypes.CDLL(None)
    if choice() == KEEP and hasattr(process, "gnu_get_libc_version"):
        process.mallopt(_M_MMAP_MAX, 0)  # large blocks come from the heap, too, and go back to it
        process.mallopt(_M_TRIM_THRESHOLD, _NEVER)
