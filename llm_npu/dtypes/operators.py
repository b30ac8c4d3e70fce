"""Watches operators at their Python calls: on a card and on the CPU, which do not report their kernels."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType

import paddle
from paddle import _C_ops

from llm_npu.models.library import LIBRARIES

from .placing import Call
from .tensors import dtype_of

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

# Whose modules import operators by name.
PACKAGES = ("paddle", *LIBRARIES)

Tell = Callable[[str, Call], None]


class OperatorHooks:
    """A context in which ``tell(kernel, call)`` is called for operators that a card would not run on its
    cores.

    Hooked are the functions of ``paddle._C_ops``, wherever in Paddle and PaddleNLP they have been imported,
    and the methods of tensors: forward computations and optimizers, in dygraph. ``tell`` is called on the
    caller's stack, after the operator.
    """

    def __init__(self, tell: Tell):
        self._tell = tell
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
                    self._tell(kernel, call)
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
