"""Checks of arguments that are true for every backend. Each raises ValueError in words."""

from __future__ import annotations

import paddle

from .. import contracts
from ..devices import device_of

FLOATS = ("float32", "bfloat16", "float16", "float64")


def dtype_name(tensor) -> str:
    """``float32``, ``bfloat16``, ...: of a tensor or of a value of a captured program."""
    return str(tensor.dtype).rpartition(".")[2].lower()


def check_tensor(operator: str, name: str, value, dtypes: tuple[str, ...] = FLOATS) -> None:
    """``value`` is a tensor, or a value of a captured program, of one of ``dtypes``."""
    if not isinstance(value, (paddle.Tensor, paddle.pir.Value)):
        raise ValueError(f"{operator}: {name} is {type(value).__name__}; accepted: a paddle tensor.")
    if dtype_name(value) not in dtypes:
        raise ValueError(
            f"{operator}: {name} is {dtype_name(value)}; accepted: {', '.join(dtypes)}. "
            "Cast it with tensor.astype."
        )


def check_ruled_tensor(rule: str, operator: str, name: str, value, dtypes: tuple[str, ...] = FLOATS) -> None:
    """The same where the dtypes are CANN's ``rule``, so that its number is in the error."""
    if isinstance(value, (paddle.Tensor, paddle.pir.Value)) and dtype_name(value) not in dtypes:
        contracts.refuse(rule, operator, f"{name} is {dtype_name(value)}")
    check_tensor(operator, name, value, dtypes)


def check_shape(operator: str, name: str, tensor, expected: list[int], what: str) -> None:
    """The tensor has the ``expected`` shape, where -1 stands for a size that is not known yet."""
    shape = list(tensor.shape)
    if len(shape) != len(expected) or any(
        a != b and -1 not in (a, b) for a, b in zip(shape, expected, strict=True)
    ):
        raise ValueError(f"{operator}: {name} has shape {shape}; accepted: {expected}, {what}.")


def no_16_bit_on_cpu(*tensors) -> str | None:
    """Why composed operators cannot compute on these tensors: Paddle's CPU kernels have no 16-bit types."""
    for tensor in tensors:
        if (
            tensor is not None
            and dtype_name(tensor) in ("bfloat16", "float16")
            and device_of(tensor) == "cpu"
        ):
            return f"Paddle's CPU kernels do not compute in {dtype_name(tensor)}"
    return None
