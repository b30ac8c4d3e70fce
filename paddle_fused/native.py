"""Loads the host kernels as Paddle operators (``pf_...``), and reports why they cannot be loaded.

They run on tensors on the CPU place and on the virtual NPU, which stores its tensors in host memory.
"""

from __future__ import annotations

import functools
import os

import paddle
from paddle.utils.cpp_extension import extension_utils

from . import built_for, libraries
from .devices import elsewhere, is_captured

LIBRARY = libraries.folder() / libraries.OPERATORS


def unsupported_reason(*tensors) -> str | None:
    """Why the host kernels cannot run on these tensors, or None. Tensors may be None."""
    reason = elsewhere(("cpu", "npu"), tensors)
    if reason is not None:
        return reason
    if elsewhere(("cpu",), tensors) is not None:  # on an npu
        if not libraries.virtual_npu_is_active():
            return "the tensors are in the memory of a card, which host kernels cannot access"
        if os.environ.get("VIRTUAL_NPU_STRICT") == "1":
            return "VIRTUAL_NPU_STRICT=1 excludes npu tensors from host kernels, as on a card"
    return _load_error()


def can_read(tensor) -> bool:
    """Whether the values of ``tensor`` can be checked: it is local and has data in host memory."""
    if not isinstance(tensor, paddle.Tensor) or tensor.is_dist():
        return False
    return unsupported_reason(tensor) is None


def wants_gradient(tensor) -> bool:
    """Whether a host operator must support the gradient of ``tensor``.

    Always True in a captured program, because its gradient may be computed later.
    """
    return is_captured(tensor) or not tensor.stop_gradient


def call(operator: str, *arguments) -> list:
    """Runs a host operator and returns its outputs, in dygraph and in captured programs.

    ``arguments``: tensors or lists of tensors (None for a missing optional one), then attributes, in the
    order of the operator's registration.
    """
    _load_error()
    like = arguments[0][0] if isinstance(arguments[0], list) else arguments[0]
    return run(operator, *(_nothing(like) if argument is None else argument for argument in arguments))


def run(operator: str, *arguments) -> list:
    """Runs a custom operator, without gradients under ``no_grad``, which Paddle does not ensure."""
    outputs = paddle._C_ops._run_custom_op(operator, *arguments)
    in_place = operator.endswith("_")  # outputs that are also inputs
    if not in_place and paddle.in_dynamic_mode() and not paddle.is_grad_enabled():
        for output in outputs:
            if output is not None:
                output.stop_gradient = True
    return outputs


def _nothing(like):
    """The placeholder for a missing optional tensor: None, or an empty tensor during capture.

    Operators accept both. During capture, Paddle 3.3.1 miscounts missing inputs and then rejects their
    gradients.
    """
    return paddle.zeros([0]) if is_captured(like) else None


def register() -> None:
    """Registers the host operators with Paddle. Raises RuntimeError with the reason for a failure."""
    if error := _load_error():
        raise RuntimeError(error)


@functools.cache
def _load_error() -> str | None:
    """Loads the library once. Returns the reason for a failure, or None."""
    try:
        libraries.check_built()
        built_for.check_package()
        extension_utils.load_op_meta_info_and_register_op(str(LIBRARY))
    except libraries.SetupError as error:
        return str(error)
    except (RuntimeError, OSError) as error:
        return f"{LIBRARY.name} could not be loaded: {str(error).strip().splitlines()[-1]}"
    return None
