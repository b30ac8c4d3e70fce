"""Observes the operators that Python calls in dygraph, on every device.

Operators called only from C++ are not observed: those in ``backward()`` and in captured programs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import ClassVar

import paddle
from paddle import _C_ops

# The operators behind Python's arithmetic, which Paddle implements in C++.
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
# Other methods of tensors that run kernels: those of indexing depend on the index.
METHODS = {
    "clear_gradient": "full",
    "clone": "assign",
    "_getitem_dygraph": "getitem",
    "_setitem_dygraph": "setitem",
}
CUSTOM = "_run_custom_op"  # its first argument is the name of the operator
PACKAGES = ("paddle", "paddlenlp", "paddleformers")  # their modules import operators by name


class OperatorHooks:
    """A context manager that calls ``after(kernel, arguments, result)`` after each operator, on its stack.

    It wraps the functions of ``paddle._C_ops`` wherever Paddle and the model libraries import them, and the
    C++ methods of tensors. This covers forward computations and optimizers. Keyword arguments are appended to
    ``arguments``.
    """

    _observers: ClassVar[list[Callable]] = []
    _replaced: ClassVar[list[tuple[object, str, object]]] = []

    def __init__(self, after: Callable[[str, tuple, object], None]):
        self._after = after

    def __enter__(self) -> OperatorHooks:
        if not self._observers:
            for owner, name, kernel in [*_functions(), *_methods()]:
                original = vars(owner)[name]
                self._replaced.append((owner, name, original))
                setattr(owner, name, _hooked(original, kernel, self._observers))
        self._observers.append(self._after)
        return self

    def __exit__(self, *error) -> None:
        self._observers.remove(self._after)
        while self._replaced and not self._observers:
            owner, name, original = self._replaced.pop()
            setattr(owner, name, original)


def _hooked(original, kernel: str, observers: list[Callable]):
    # Without observers it only forwards: other code may have imported the wrapper meanwhile.
    @functools.wraps(original)
    def hooked(*args, **kwargs):
        result = original(*args, **kwargs)
        if observers:
            arguments = (*args, *kwargs.values()) if kwargs else args
            for after in observers:
                after(arguments[0] if kernel == CUSTOM else kernel, arguments, result)
        return result

    return hooked


def _functions() -> Iterator[tuple[object, str, str]]:
    """The module, the name in it and the kernel of each operator function."""
    operators = {name: getattr(_C_ops, name) for name in _C_ops.__all__}
    kernels = {
        id(operator): CUSTOM if name == CUSTOM else name.rstrip("_")
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
    """The tensor type, the name and the kernel of each tensor method that Paddle implements in C++."""
    for name, method in list(vars(paddle.Tensor).items()):
        if not isinstance(method, (MethodDescriptorType, WrapperDescriptorType)):
            continue
        if name.startswith("__"):
            plain = name.strip("_")
            kernel = ARITHMETIC.get(plain) or ARITHMETIC.get(plain[1:])  # __radd__, __iadd__
        else:
            kernel = METHODS.get(name) or (name.rstrip("_") if hasattr(_C_ops, name) else None)
        if kernel:
            yield paddle.Tensor, name, kernel


def tensors(values) -> Iterator[paddle.Tensor]:
    """The tensors among ``values``, including those in lists and tuples."""
    for value in values:
        if isinstance(value, paddle.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors(value)
