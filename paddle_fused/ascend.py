"""Calls the operators of paddle-custom-npu by name, with the plugin for cards or the virtual NPU.

The operators and their arguments differ between releases of the plugin, so both are looked up at run time.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from pathlib import Path
from typing import NamedTuple

import paddle
from paddle.utils.cpp_extension import extension_utils

from . import native, paddle_release
from .devices import elsewhere


class Signature(NamedTuple):
    """The input and attribute names of an operator, in argument order."""

    inputs: tuple[str, ...]
    attributes: tuple[str, ...]


def unsupported_reason(*tensors, operators: tuple[str, ...] = ()) -> str | None:
    """Why the plugin cannot run these ``operators`` on these tensors, or None."""
    reason = elsewhere(("npu",), tensors)
    if reason is not None:
        return reason
    missing = [operator for operator in operators if signature(operator) is None]
    if missing:
        return f"the installed plugin does not have the operator {' or '.join(missing)}"
    return None


@functools.cache
def signature(operator: str) -> Signature | None:
    """The signature of a plugin operator, or None if the plugin does not have it."""
    register()
    try:
        inputs, attributes, _ = extension_utils.parse_op_info(operator)
    except ValueError:
        return None
    return Signature(
        tuple(name.partition("@")[0] for name in inputs),
        tuple(name.partition("@")[0] for name in attributes),
    )


def call(operator: str, *arguments) -> list:
    """Runs a plugin operator and returns its outputs, in dygraph and in captured programs."""
    register()
    outputs = native.run(operator, *arguments)
    if isinstance(outputs[0], paddle.Tensor) and not outputs[0].stop_gradient:
        outputs[0].register_hook(functools.partial(_first_derivative, operator))
    return outputs


def refuse_second_derivative(operator: str) -> None:
    """Raises ValueError in a backward pass with ``create_graph=True``."""
    raise ValueError(
        f"{operator}: received create_graph=True; accepted: first derivatives only. The composed backend "
        "supports higher derivatives: paddle_fused.use_backend('composed', strict=True)."
    )


def _first_derivative(operator: str, _gradient) -> None:
    """A hook that runs before a plugin operator's gradient, because Paddle silently omits second derivatives.

    It looks for ``paddle.grad`` on the stack: nothing else shows that the caller requested ``create_graph``.
    """
    caller = sys._getframe(1)
    if caller.f_code is _GRAD and caller.f_locals["create_graph"]:
        refuse_second_derivative(operator)


_GRAD = inspect.unwrap(paddle.grad).__code__


@functools.cache
def register() -> None:
    """Registers the plugin's operators with Paddle, if a plugin is installed."""
    root = os.environ.get("CUSTOM_DEVICE_ROOT", "")
    for library in sorted(Path(root).glob("*.so")) if root else ():
        extension_utils.load_op_meta_info_and_register_op(str(library))
    paddle_release.update_op_proto()  # includes operators that other libraries registered
