"""Hooks that run before and after a process of a PaddleFormers job imports paddleformers."""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import sys

import paddle_fused
import virtual_npu
from llm_npu import patches, surgery
from llm_npu.patches import incubate
from paddle_fused import host_memory

FAMILIES_SINCE = (1, 1)  # of paddleformers; earlier releases only serve ERNIE, which has its own models


def before_library() -> None:
    """Replace Paddle's own functions by fused operators, before modules import them by name."""
    incubate.apply()
    atexit.register(report)


def after_library() -> None:
    """Apply the patches, and fuse every PaddleFormers model built from now on."""
    patches.apply()
    if virtual_npu.is_active():
        host_memory.keep_freed_memory()
    version = importlib.metadata.version("paddleformers")
    if tuple(map(int, version.split(".")[:2])) >= FAMILIES_SINCE:
        surgery.apply_fused_kernel()


def report() -> None:
    """Print the fused operators that this process ran to stderr (a rank's log)."""
    calls = paddle_fused.dispatch_log()
    for call in calls:
        refused = "".join(f"; not {backend}: {why}" for backend, why in call.refused.items())
        how = f"{call.count} calls, {call.backend}, {call.mode}{refused}"
        print(f"llm_npu.formers: {call.operator}, {call.dtype}: {how}", file=sys.stderr)
    if not calls and "PADDLE_TRAINER_ID" in os.environ:
        print(
            "llm_npu.formers: no fused operator ran: the job ended before its first step (see above), or the "
            "model's family is not supported.",
            file=sys.stderr,
        )
