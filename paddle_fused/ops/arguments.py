"""Argument checks for every backend. Each raises a ValueError that states the accepted values."""

from __future__ import annotations

import operator as operators
from collections.abc import Iterable
from numbers import Real

import numpy as np
import paddle

from .. import contracts
from ..captured import apply_patches, leave_untransformed
from ..devices import device_of, is_captured, located
from ..dispatch import name_of

# Every operator and mask imports this module, so this runs before any capture.
apply_patches()
leave_untransformed("paddle_fused.ops")

# Dtypes of the composed backend. CANN and the other backends do not support float64; see the contracts.
COMPOSED_FLOATS = ("float32", "bfloat16", "float16", "float64")
FLOAT64_NOTE = "Only the composed backend supports float64."


def check_is_tensor(operator: str, name: str, value) -> None:
    """Raises ValueError unless ``value`` is a tensor or a value of a captured program."""
    if not isinstance(value, (paddle.Tensor, paddle.pir.Value)):
        raise ValueError(f"{operator}: {name} is {type(value).__name__}; accepted: a paddle tensor.")


def dtype_name(tensor) -> str:
    """The dtype of a tensor or of a value of a captured program: ``float32``, ``bfloat16``, ..."""
    return name_of(tensor.dtype)


def check_tensor(operator: str, name: str, value, dtypes: tuple[str, ...] = COMPOSED_FLOATS) -> None:
    """Raises ValueError unless ``value`` is a tensor or a captured value with one of ``dtypes``."""
    check_is_tensor(operator, name, value)
    if dtype_name(value) not in dtypes:
        raise ValueError(
            f"{operator}: {name} is {dtype_name(value)}; accepted: {', '.join(dtypes)}. "
            "Cast it with tensor.astype."
        )


def check_contract_dtype(
    rule: str, operator: str, name: str, value, dtypes: tuple[str, ...] = COMPOSED_FLOATS
) -> None:
    """``check_tensor`` for the dtypes of CANN's ``rule``; the error has CANN's number."""
    if isinstance(value, (paddle.Tensor, paddle.pir.Value)) and dtype_name(value) not in dtypes:
        note = FLOAT64_NOTE if "float64" in dtypes else ""
        contracts.refuse(rule, operator, f"{name} is {dtype_name(value)}", note)
    check_tensor(operator, name, value, dtypes)


def check_shape(operator: str, name: str, tensor, expected: list[int], what: str) -> None:
    """Raises ValueError unless the tensor has the ``expected`` shape; -1 is an unknown size."""
    if not same_shape(tensor.shape, expected):
        raise ValueError(f"{operator}: {name} has shape {list(tensor.shape)}; accepted: {expected}, {what}.")


def check_number(operator: str, name: str, value) -> float:
    """``value``, a number or a one-element tensor, as a float."""
    number = value.item() if isinstance(value, (paddle.Tensor, np.ndarray)) and value.size == 1 else value
    if not isinstance(number, Real):
        raise ValueError(
            f"{operator}: {name} is {_described(value)}; accepted: a number. Pass an int or a float."
        )
    return float(number)


def check_int(operator: str, name: str, value) -> int:
    """``value``, an integer or a one-element tensor, as an int. Rejects floats."""
    number = value.item() if isinstance(value, (paddle.Tensor, np.ndarray)) and value.size == 1 else value
    if not hasattr(number, "__index__") or isinstance(number, (paddle.Tensor, np.ndarray, paddle.pir.Value)):
        raise ValueError(f"{operator}: {name} is {_described(value)}; accepted: an integer. Pass an int.")
    return operators.index(number)


def check_ints(operator: str, name: str, values) -> tuple[int, ...]:
    """``values``, a list, a tuple or an integer tensor of rank 1, as a tuple of ints."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Iterable):
        raise ValueError(
            f"{operator}: {name} is {_described(values)}; accepted: a list of integers. Pass a list of ints."
        )
    return tuple(check_int(operator, f"an element of {name}", value) for value in listed)


def _described(value) -> str:
    """``value`` for an error message; a tensor is described by its shape."""
    if isinstance(value, (paddle.Tensor, paddle.pir.Value, np.ndarray)):
        return f"a tensor of shape {list(value.shape)}"
    return repr(value)


def same_shape(a, b) -> bool:
    """Whether two shapes are equal; -1 is an unknown size."""
    return len(a) == len(b) and all(i == j or -1 in (i, j) for i, j in zip(a, b, strict=True))


def check_one_device(operator: str, **tensors) -> None:
    """Raises ValueError unless all tensors are on one device (npu:0 differs from npu:1). Skips None."""
    devices = {name: located(tensor) for name, tensor in tensors.items() if tensor is not None}
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{name} is on {device}" for name, device in devices.items())
        raise ValueError(f"{operator}: {where}; accepted: one device for all. Move them with tensor.to.")


def no_16_bit_on_cpu(*tensors) -> str | None:
    """The composed backend's reason to decline, or None: Paddle's CPU kernels do not support 16-bit types."""
    for tensor in tensors:
        if (
            tensor is not None
            and dtype_name(tensor) in ("bfloat16", "float16")
            and device_of(tensor) == "cpu"
        ):
            return f"Paddle's CPU kernels do not compute in {dtype_name(tensor)}"
    return None


def with_gradient(tensor, other):
    """A frozen tensor with an unused gradient if ``other`` needs a gradient, otherwise the tensor itself.

    Some of Paddle's kernels require this. ``matmul`` fails if a frozen factor is empty. ``layer_norm`` on the
    CPU, and therefore on the virtual NPU, omits a frozen weight from the gradient of x.
    """
    if is_captured(tensor) or not tensor.stop_gradient or not wants_gradient(other):
        return tensor
    tensor = tensor.detach()
    tensor.stop_gradient = False
    return tensor


def wants_gradient(*tensors) -> bool:
    """Whether any of the tensors needs a gradient. Skips None."""
    return paddle.is_grad_enabled() and any(t is not None and not t.stop_gradient for t in tensors)
