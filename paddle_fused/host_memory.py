"""Keeps the memory of freed CPU tensors in the process, for reuse by later tensors.

Paddle frees CPU tensors with free(), and glibc returns large blocks to the system immediately. Every large
result then gets new pages. Zeroing and mapping these takes longer than computing the result. The setting
affects the whole process, so a program (here the trainer) must opt in; importing the operators does not
change it. The virtual NPU has its own memory pool.
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
    """PADDLE_FUSED_MALLOC, ``keep`` (the default) or ``system``. Raises ValueError for any other value."""
    value = os.environ.get(VARIABLE) or KEEP
    if value not in (KEEP, SYSTEM):
        raise ValueError(f"{VARIABLE} is {value!r}; accepted: {KEEP!r} (the default) and {SYSTEM!r}.")
    return value


def keep_freed_memory() -> None:
    """Makes glibc's malloc keep freed memory in the whole process.

    Does nothing with other C libraries or if ``choice`` is ``system``.
    """
    process = ctypes.CDLL(None)
    if choice() == KEEP and hasattr(process, "gnu_get_libc_version"):
        process.mallopt(_M_MMAP_MAX, 0)  # allocate large blocks from the heap as well
        process.mallopt(_M_TRIM_THRESHOLD, _NEVER)
