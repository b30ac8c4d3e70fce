"""The most memory that this process has held, from a moment on. For Linux.

Not ru_maxrss of getrusage: a process inherits it from the one that started it, such as all of pytest.
"""

import re
from collections.abc import Callable
from pathlib import Path


def grown_by(work: Callable[[], object]) -> int:
    """Bytes by which the largest resident memory during ``work()`` exceeds what there was before."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = _peak()
    work()
    return _peak() - before


def _peak() -> int:
    (kibibytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kibibytes) * 1024
