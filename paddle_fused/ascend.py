"""Calls operators of paddle-custom-npu by name, on the plugin for cards or on the virtual NPU.

Operators and their arguments differ between releases of the plugin, so both are probed.
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
    """The names of an operator's inputs and attributes, in the order of its arguments."""

    inputs: tuple[str, ...]
    attributes: tuple[str, ...]


def unsupported_reason(*tensors, operators: tuple[str, ...] = ()) -> str | None:
    """Why the plugin cannot run these ``operators`` on these tensors, or None."""
    reason = elsewhere(("npu",), tensors)
    if reason is not None:
        return reason
    missing = [operator for operator in operators if signature(operator) is None]
    if missing:
        return f"the plugin that is installed has no operator {' or '.join(missing)}"
    return None


@functools.cache
def signature(operator: str) -> Signature | None:
    """The signature of a plugin operator, or None if the plugin has no such operator."""
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
    """The outputs of a plugin operator, in dygraph and in captured programs."""
    register()
    outputs = native.run(operator, *arguments)
    if isinstance(outputs[0], paddle.Tensor) and not outputs[0].stop_gradient:
        outputs[0].register_hook(functools.partial(_first_derivative, operator))
    return outputs


def refuse_second_derivative(operator: str) -> None:
    """Raises ValueError in a backward pass that is itself differentiated."""
    raise ValueError(
        f"{operator}: a gradient with create_graph=True was asked for; accepted: first derivatives. Plain "
        "Paddle's operators may have more: paddle_fused.use_backend('composed', strict=True)."
    )


def _first_derivative(operator: str, _gradient) -> None:
    """A hook before a plugin operator's gradient, because Paddle silently omits the second derivative.

    It looks for ``paddle.grad`` on the stack, the only sign that the graph of the gradients is requested.
    """
    caller = sys._getframe(1)
    if caller.f_code is _GRAD and caller.f_locals["create_graph"]:
        refuse_second_derivative(operator)


_GRAD = inspect.unwrap(paddle.grad).__code__


@functools.cache
def register() -> None:
    """Registers the plugin's operators with Paddle, if there is a plugin."""
    root = os.environ.get("CUSTOM_DEVICE_ROOT", "")
    for library in sorted(Path(root).glob("*.so")) if root else ():
        extension_utils.load_op_meta_info_and_register_op(str(library))
    paddle_release.update_op_proto()  # also for operators that others registered
