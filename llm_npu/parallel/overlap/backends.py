"""The backends by name; each is a module with ``all_reduce``, ``reduce_scatter`` and ``gather``."""

from __future__ import annotations

from . import mc2, pipelined, serial
from .product import GATHER, MC2, PIPELINED, SERIAL, Setting

MODULES = {SERIAL: serial, PIPELINED: pipelined, MC2: mc2}


def reduce(kind: str, setting: Setting, left, weight, transpose: bool, group, concurrent=None) -> tuple:
    """(left weight, summed over the ranks and scattered depending on ``kind``; concurrent())"""
    run = getattr(MODULES[setting.backend], kind)
    return run(left, weight, transpose, group, concurrent, setting.chunks)


def gather(setting: Setting, left, weight, transpose: bool, group, keep: bool) -> tuple:
    """(left of all ranks times weight, left of all ranks if ``keep`` else None)"""
    return MODULES[setting.backend].gather(left, weight, transpose, group, keep, setting.chunks)


def run(kind: str, setting: Setting, left, weight, transpose: bool, group, concurrent=None):
    """Run any kind, for callers that do not need the results."""
    if kind == GATHER:
        return gather(setting, left, weight, transpose, group, False)
    return reduce(kind, setting, left, weight, transpose, group, concurrent)
