"""A limit on the memory that one computation may take."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def limited(more: int) -> Iterator[None]:
    """Inside, this process gets up to ``more`` bytes of address space beyond what it has, then MemoryError.

    The limit is the process's: meant for computations of Python beside which no other thread takes memory.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    wanted = pages * resource.getpagesize() + more
    for limit in (soft, hard):
        wanted = wanted if limit == resource.RLIM_INFINITY else min(wanted, limit)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
