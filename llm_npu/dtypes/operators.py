"""Watches operators called from Python: on a card and on the CPU, which do not report their kernels.

``start`` enables warnings in any program. Operators called only from C++, for example in ``backward()``, are
not covered.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable

import paddle
from paddle.jit.dy2static.pir_partial_program import PartialProgramLayer

from paddle_fused.operator_hooks import OperatorHooks, tensors
from virtual_npu import AICPUWarnings, HostFallback, source_lines

from .placing import Call, dtype_of, of_program
from .report import WIDE, Finding

HOST = "LLM_NPU_DTYPES_HOST"  # 1: also warn about dtypes other than float64
NO_OPERATORS = ("run_program", "data")  # the call of a captured program; a placeholder of an argument


class FallbackHooks(OperatorHooks):
    """Context that calls ``report(kernel, call)`` for operators that a card would not run on its cores.

    ``report`` is called on the caller's stack, after the operator.
    """

    def __init__(self, report: Callable[[str, Call], None]):
        def after(kernel: str, arguments: tuple, result: object) -> None:
            call = Call.of(kernel, list(tensors(arguments)), list(tensors((result,))), dtype_of)
            if call is not None:
                report(kernel, call)

        super().__init__(after)


def start() -> None:
    """Emit warnings until the process exits."""
    site_warnings = AICPUWarnings("llm-npu dtypes run")
    atexit.register(site_warnings.print_summary)
    warnings = OperatorWarnings(site_warnings, every=os.environ.get(HOST) == "1")
    FallbackHooks(warnings.called).__enter__()
    for owner, name, program_of in (
        (PartialProgramLayer, "__call__", lambda layer, *_: layer._origin_main_program),
        (PartialProgramLayer, "sot_call", lambda layer, *_: layer._origin_main_program),
        (paddle.static.Executor, "run", _program_of_run),
    ):
        setattr(owner, name, warnings.before(getattr(owner, name), program_of))


def _program_of_run(executor, program=None, *_, **__):
    return program or paddle.static.default_main_program()


class OperatorWarnings:
    """Reports calls of operators and of captured programs to ``site_warnings``.

    With ``every``, also reports dtypes other than float64 that a card does not run on its cores.
    """

    def __init__(self, site_warnings: AICPUWarnings, every: bool):
        self._warnings, self._every = site_warnings, every

    def called(self, kernel: str, call: Call) -> None:
        """Warn about an operator called from Python."""
        if (
            kernel not in NO_OPERATORS
            and call.operand.place.is_custom_place()
            and self._is_wanted(call.dtype)
        ):
            shape = tuple(call.operand.shape)
            fallback = HostFallback(kernel, call.place, call.dtype, shape, call.is_source)
            self._warnings.warn(fallback, sys._getframe())

    def before(self, function: Callable, program_of: Callable) -> Callable:
        """Wrap ``function`` to warn about the operators of the program that it runs."""

        @functools.wraps(function)
        def watched(*args, **kwargs):
            program = program_of(*args, **kwargs)
            if isinstance(program, paddle.pir.Program) and paddle.get_device().startswith("npu"):
                for finding in filter(self._is_reported, _findings(program)):
                    fallback = HostFallback(
                        finding.name, finding.place, finding.dtype, finding.shape, finding.is_source
                    )
                    self._warnings.warn_at(fallback, finding.source)
            return function(*args, **kwargs)

        return watched

    def _is_reported(self, finding: Finding) -> bool:
        is_operator = finding.source is not None and finding.name not in NO_OPERATORS
        return is_operator and self._is_wanted(finding.dtype)

    def _is_wanted(self, dtype: str) -> bool:
        return self._every or dtype in WIDE


@functools.lru_cache(maxsize=16)
def _findings(program) -> list[Finding]:
    return list(of_program(program, packages=source_lines.LIBRARIES))
