"""Watches operators at their Python calls: on a card and on the CPU, which do not report their kernels.

``start`` warns in any program. Operators that only C++ calls, for example those of ``backward()``, are not
seen.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType

import paddle
from paddle import _C_ops
from paddle.jit.dy2static.pir_partial_program import PartialProgramLayer

from llm_npu.models import library
from virtual_npu import AICPUWarnings, HostFallback, source_lines

from .placing import Call, dtype_of, of_program
from .report import WIDE, Finding

HOST = "LLM_NPU_DTYPES_HOST"  # 1 also warns of other dtypes
NO_OPERATORS = ("run_program", "data")  # a call of a captured program; a placeholder of one of its arguments

# The operators behind Python's arithmetic; Paddle computes them in C++.
ARITHMETIC = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "div": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "elementwise_pow",
    "matmul": "matmul",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less_than",
    "le": "less_equal",
    "gt": "greater_than",
    "ge": "greater_equal",
}

PACKAGES = ("paddle", *library.LIBRARIES)  # their modules import operators by name


class OperatorHooks:
    """A context that calls ``report(kernel, call)`` for operators that a card would not run on its cores.

    It hooks the functions of ``paddle._C_ops``, wherever in Paddle and PaddleNLP they have been imported, and
    the methods of tensors: forward computations and optimizers, in dygraph. ``report`` is called on the
    caller's stack, after the operator.
    """

    def __init__(self, report: Callable[[str, Call], None]):
        self._report = report
        self._active = False
        self._replaced: list[tuple[object, str, object]] = []

    def __enter__(self) -> OperatorHooks:
        self._active = True
        for owner, name, kernel in [*_functions(), *_methods()]:
            original = vars(owner)[name]
            self._replaced.append((owner, name, original))
            setattr(owner, name, self._hook(original, kernel))
        return self

    def __exit__(self, *error) -> None:
        self._active = False  # for code that has imported a hook in the meantime
        while self._replaced:
            owner, name, original = self._replaced.pop()
            setattr(owner, name, original)

    def _hook(self, original, kernel: str):
        @functools.wraps(original)
        def hooked(*args, **kwargs):
            result = original(*args, **kwargs)
            if self._active:
                call = Call.of(
                    kernel, list(_tensors((*args, *kwargs.values()))), list(_tensors((result,))), dtype_of
                )
                if call is not None:
                    self._report(kernel, call)
            return result

        return hooked


def _functions() -> Iterator[tuple[object, str, str]]:
    """Module, name there and kernel of each operator's function."""
    operators = {name: getattr(_C_ops, name) for name in _C_ops.__all__}
    kernels = {
        id(operator): name.rstrip("_")
        for name, operator in operators.items()
        if isinstance(operator, BuiltinFunctionType)
    }
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in PACKAGES or module is None:
            continue
        for name, value in list(vars(module).items()):
            if id(value) in kernels:
                yield module, name, kernels[id(value)]


def _methods() -> Iterator[tuple[object, str, str]]:
    """The tensor's type, name and kernel of each of its methods that Paddle implements in C++."""
    for name, method in list(vars(paddle.Tensor).items()):
        if not isinstance(method, (MethodDescriptorType, WrapperDescriptorType)):
            continue
        if name.startswith("__"):
            plain = name.strip("_")
            kernel = ARITHMETIC.get(plain) or ARITHMETIC.get(plain[1:])  # __radd__, __iadd__
        else:
            kernel = name.rstrip("_") if hasattr(_C_ops, name) else None
        if kernel:
            yield paddle.Tensor, name, kernel


def _tensors(values) -> Iterator[paddle.Tensor]:
    for value in values:
        if isinstance(value, paddle.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def start() -> None:
    """Warns until the process ends."""
    site_warnings = AICPUWarnings("llm-npu dtypes run")
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
    """Reports calls of operators and of captured programs to ``site_warnings``.

    ``every``: also of other dtypes that a card does not run on its cores.
    """

    def __init__(self, site_warnings: AICPUWarnings, every: bool):
        self._warnings, self._every = site_warnings, every

    def called(self, kernel: str, call: Call) -> None:
        """Warns of an operator that Python has called."""
        if (
            kernel not in NO_OPERATORS
            and call.operand.place.is_custom_place()
            and self._is_wanted(call.dtype)
        ):
            shape = tuple(call.operand.shape)
            fallback = HostFallback(kernel, call.place, call.dtype, shape, call.is_source)
            self._warnings.warn(fallback, sys._getframe())

    def before(self, function: Callable, program_of: Callable) -> Callable:
        """``function``, after the warnings for the program that it runs."""

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
