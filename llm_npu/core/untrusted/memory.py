"""A limit on the memory of one computation."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def limited(more: int) -> Iterator[None]:
    """Limit this process to ``more`` bytes of address space beyond its current use, else MemoryError.

    The limit holds for the whole process: no other thread should allocate at the same time.
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
