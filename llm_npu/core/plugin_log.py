"""Extracts from stderr what paddle-custom-npu logs about kernels on the AICPU. Imports no framework.

The plugin's npu_op_runner.h logs every aclnn operator at level 1 ("NpuAclnnOpRunner: aclnnAdd") and, for each
of its float64 tensors, one line at level 2 ("Kernel is running on the AICPU.For better performance. use other
dtypes."), which names neither operator nor shape. Level 2 for that file is ``GLOG_vmodule=npu_op_runner=2``,
or ``paddle.base.core.set_vlog_level``; it shows only with ``GLOG_minloglevel=0``.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

MODULE = "npu_op_runner"
LEVEL = 2

# glog: severity, date, time, thread, file:line] message
_LINE = re.compile(r"[IWEF]\d{4,8} [\d:.]+\s+(?P<thread>\d+) (?P<file>[^\s:]+):\d+\] ?(?P<message>.*)")
_OPERATOR = re.compile(r"NpuAclnnOpRunner: (?P<name>\w+)")
_AICPU = "Kernel is running on the AICPU"


class AICPULines:
    """Counts the float64 tensors of each aclnn operator in the log."""

    def __init__(self):
        self.tensors: Counter[str] = Counter()
        self._running: dict[str, str] = {}  # thread -> its current operator

    def take(self, line: str) -> bool:
        """Count a line about an operator of the plugin; whether it was one, and need not be shown."""
        found = _LINE.match(line)
        if not found or os.path.splitext(os.path.basename(found["file"]))[0] != MODULE:
            return False
        operator = _OPERATOR.match(found["message"])
        if operator:
            self._running[found["thread"]] = operator["name"]
        elif found["message"].startswith(_AICPU):
            self.tensors[self._running.get(found["thread"], "an operator without a name")] += 1
        return True


@contextlib.contextmanager
def taken_from_stderr(take: Callable[[str], bool]) -> Iterator[None]:
    """Hide the lines on file descriptor 2 for which ``take`` is true."""
    sys.stderr.flush()
    shown = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)

    def pump() -> None:
        with open(reading, "rb") as lines, open(shown, "wb", buffering=0, closefd=False) as screen:
            for line in lines:
                if not take(line.decode(errors="replace")):
                    screen.write(line)

    reader = threading.Thread(target=pump, name="plugin log", daemon=True)
    reader.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(shown, 2)  # closes the last writing end: the reader meets the end of the file
        reader.join()
        os.close(shown)
