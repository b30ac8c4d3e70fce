"""Warns of float64 in any program on a card, which does not report its kernels.

The operators that Python calls are watched, and those of captured programs when the programs run. Operators
that only C++ calls, such as those of ``backward()``, are not seen.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable

import paddle
from paddle.jit.dy2static.pir_partial_program import PartialProgramLayer

from virtual_npu import AICPUWarnings, HostFallback
from virtual_npu.source_lines import LIBRARIES

from .operators import OperatorHooks
from .placing import Call
from .programs import of_program
from .report import WIDE, Finding

HOST = "LLM_NPU_DTYPES_HOST"  # 1 warns of other dtypes, too

NO_OPERATORS = ("run_program", "data")  # calls a captured program; stands for an argument of one


def start() -> None:
    """Warns until the process ends."""
    site_warnings = AICPUWarnings("python -m llm_npu.dtypes run")
    atexit.register(site_warnings.print_summary)
    warnings = OperatorWarnings(site_warnings, every=os.environ.get(HOST) == "1")
    OperatorHooks(warnings.called).__enter__()
    for owner, name, program_of in (
        (PartialProgramLayer, "__call__", lambda layer, *_: layer._origin_main_program),
        (PartialProgramLayer, "sot_call", lambda layer, *_: layer._origin_main_program),
        (paddle.static.Executor, "run", _program_of_run),
    ):
        setattr(owner, name, warnings.before(getattr(owner, name), program_of))


def _program_of_run(executor, program=None, *_, **__):
    return program or paddle.static.default_main_program()


class OperatorWarnings:
    """Finds the sites of ``site_warnings`` in the calls of operators and of captured programs.

    ``every``: also those of other dtypes that a card does not run on its cores.
    """

    def __init__(self, site_warnings: AICPUWarnings, every: bool):
        self._warnings, self._every = site_warnings, every

    def called(self, kernel: str, call: Call) -> None:
        """For an operator that Python has called."""
        if kernel not in NO_OPERATORS and call.blamed.place.is_custom_place() and self._is_wanted(call.dtype):
            shape = tuple(call.blamed.shape)
            fallback = HostFallback(kernel, call.place, call.dtype, shape, call.born)
            self._warnings.warn(fallback, sys._getframe())

    def before(self, function: Callable, program_of: Callable) -> Callable:
        """``function``, after the warnings for the program that it runs."""

        @functools.wraps(function)
        def watched(*args, **kwargs):
            program = program_of(*args, **kwargs)
            if isinstance(program, paddle.pir.Program) and paddle.get_device().startswith("npu"):
                for found in filter(self._is_reported, _findings(program)):
                    fallback = HostFallback(found.name, found.place, found.dtype, found.shape, found.born)
                    self._warnings.warn_at(fallback, found.source)
            return function(*args, **kwargs)

        return watched

    def _is_reported(self, found: Finding) -> bool:
        return found.source is not None and found.name not in NO_OPERATORS and self._is_wanted(found.dtype)

    def _is_wanted(self, dtype: str) -> bool:
        return self._every or dtype in WIDE


@functools.lru_cache(maxsize=16)
def _findings(program) -> list[Finding]:
    return list(of_program(program, packages=LIBRARIES))
