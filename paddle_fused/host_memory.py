"""Keeps the memory of freed CPU tensors in the process, for reuse by later tensors.

Paddle frees CPU tensors to malloc, and glibc returns large blocks to the system immediately. Every large
result is then new memory, whose pages are zeroed and mapped at the first write, which takes longer than
computing the result. The setting holds for the whole process, so a program makes it, as the trainer does:
importing operators does not. The virtual NPU has its own memory pool.
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
    value = os.environ.get(VARIABLE) or KEEP
    if value not in (KEEP, SYSTEM):
        raise ValueError(f"{VARIABLE} is {value!r}; accepted: {KEEP!r} (the default) and {SYSTEM!r}.")
    return value


def keep_freed_memory() -> None:
    """Makes glibc's malloc keep freed memory, for the whole process. Does nothing with other C libraries.

    Nothing changes where ``choice`` is ``system``.
    """
    process = ctypes.CDLL(None)
    if choice() == KEEP and hasattr(process, "gnu_get_libc_version"):
        process.mallopt(_M_MMAP_MAX, 0)  # allocate large blocks from the heap, too
        process.mallopt(_M_TRIM_THRESHOLD, _NEVER)
