"""The host kernels as Paddle operators (``pf_...``): loads their library, and says why it could not.

They compute on tensors of the CPU place and of the virtual NPU, whose memory is the host's.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import paddle
from paddle.utils.cpp_extension import extension_utils

from . import built_for, host_memory, libraries
from .devices import elsewhere, is_captured

LIBRARY = libraries.folder() / libraries.OPERATORS
VIRTUAL_PLUGIN = (libraries.folder() / libraries.PLUGIN).parent


def refuses(*tensors) -> str | None:
    """The reason why the host kernels cannot compute on these tensors, or None. A tensor may be None."""
    reason = elsewhere(("cpu", "npu"), tensors)
    if reason is not None:
        return reason
    if elsewhere(("cpu",), tensors) is not None:  # on an npu
        if not _npu_is_virtual():
            return "the tensors are in the memory of a card, where host kernels cannot read"
        if os.environ.get("VIRTUAL_NPU_STRICT") == "1":
            return "VIRTUAL_NPU_STRICT=1 keeps host kernels away from npu tensors, as on a card"
    return _load_error()


def can_read(tensor) -> bool:
    """Whether a check may look at the values of ``tensor``: they are there, whole, in the host's memory."""
    if not isinstance(tensor, paddle.Tensor) or tensor.is_dist():
        return False
    return refuses(tensor) is None


def wants_gradient(tensor) -> bool:
    """Whether a host operator must compute the gradient of ``tensor``, as far as its call can tell.

    In a captured program it may be wanted later.
    """
    return is_captured(tensor) or not tensor.stop_gradient


def call(operator: str, *arguments) -> list:
    """The outputs of a host operator, in dygraph and while a program is captured.

    ``arguments``: tensors or lists of them (None for an optional one that is missing), then attributes, as
    registered.
    """
    _load_error()
    like = arguments[0][0] if isinstance(arguments[0], list) else arguments[0]
    filled = (_nothing(like) if argument is None else argument for argument in arguments)
    return paddle._C_ops._run_custom_op(operator, *filled)


def _nothing(like):
    """What stands for a missing optional tensor beside ``like``: None, or a tensor without elements.

    Operators take both for missing. Paddle 3.3.1 loses count of missing inputs while a program is captured,
    where it then refuses their gradients.
    """
    return paddle.zeros([0]) if is_captured(like) else None


def register() -> None:
    """Makes the host operators known to Paddle; RuntimeError says why that failed."""
    if error := _load_error():
        raise RuntimeError(error)


@functools.cache
def _npu_is_virtual() -> bool:
    root = os.environ.get("CUSTOM_DEVICE_ROOT", "")
    return root != "" and Path(root).resolve() == VIRTUAL_PLUGIN


@functools.cache
def _load_error() -> str | None:
    """Loads the library the first time; the reason why that failed, or None."""
    try:
        libraries.check_built()
        built_for.check_package()
        extension_utils.load_op_meta_info_and_register_op(str(LIBRARY))
    except libraries.SetupError as error:
        return str(error)
    except (RuntimeError, OSError) as error:
        return f"{LIBRARY.name} could not be loaded: {str(error).strip().splitlines()[-1]}"
    host_memory.keep_freed_memory()
    return None
