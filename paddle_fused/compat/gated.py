"""torch_npu's gated activations, which split any dimension in half."""

from __future__ import annotations

import paddle
import paddle.nn.functional as F

from .. import contracts
from ..ops.arguments import check_int, check_tensor, dtype_name, wants_gradient
from ..ops.geglu.op import geglu
from ..ops.swiglu.op import swiglu


def npu_swiglu(input, dim=-1):
    """``paddle_fused.swiglu`` of the two halves of input's dimension ``dim``.

    Raises ContractError (a ValueError), with CANN's error number where it has one.

    Source: torch_npu.npu_swiglu; aclnnSwiGlu and aclnnSwiGluGrad.
    """
    dim = _checked_dim("swiglu", input, dim)
    if wants_gradient(input):
        row = input.shape[-1] * (4 if dtype_name(input) == "float32" else 2)
        if row >= 0 and row % contracts.limit("swiglu.grad_alignment"):
            contracts.refuse("swiglu.grad_alignment", "npu_swiglu", f"a row of input has {row} bytes")
    if dim == input.ndim - 1:
        return swiglu(input)
    return swiglu(*paddle.split(input, 2, axis=dim))


def npu_geglu(self, dim=-1, approximate=1, activate_left=False):
    """(out, gelu): ``paddle_fused.geglu`` of the two halves of self's dimension ``dim``, and gelu alone.

    Args:
        approximate: 1 for the tanh approximation, 0 for none.
        activate_left: out = gelu(left) * right; otherwise out = left * gelu(right).

    Returns:
        Both have half of self's size along ``dim``. Only out has a gradient.

    Raises ContractError (a ValueError), with CANN's error number where it has one.

    Source: torch_npu.npu_geglu; aclnnGeGluV3 and aclnnGeGluV3Backward.
    """
    dim = _checked_dim("geglu", self, dim)
    if check_int("npu_geglu", "approximate", approximate) not in (0, 1):
        contracts.refuse("geglu.approximate", "npu_geglu", f"approximate is {approximate}")
    if not isinstance(activate_left, bool):
        raise ValueError(
            f"npu_geglu: activate_left is {activate_left!r}; accepted: True or False. Pass a bool."
        )
    left, right = paddle.split(self, 2, axis=dim)
    gate, up = (left, right) if activate_left else (right, left)
    with paddle.no_grad():
        gelu = F.gelu(gate.astype("float32"), approximate=bool(approximate)).astype(self.dtype)
    return geglu(gate, up, "tanh" if approximate else "none"), gelu


def _checked_dim(operator: str, tensor, dim) -> int:
    """``dim`` counted from 0, after checks by the operator's rules of dtype, dim and even sizes."""
    name, argument = f"npu_{operator}", "input" if operator == "swiglu" else "self"
    check_tensor(name, argument, tensor)
    if dtype_name(tensor) not in contracts.dtypes(f"{operator}.dtype"):
        contracts.refuse(f"{operator}.dtype", name, f"{argument} is {dtype_name(tensor)}")
    shape = list(tensor.shape)
    dim = check_int(name, "dim", dim)
    if not -len(shape) <= dim < len(shape):
        contracts.refuse(f"{operator}.dim", name, f"dim is {dim} and {argument} has shape {shape}")
    if shape[dim] >= 0 and shape[dim] % 2:  # -1 is not known yet
        contracts.refuse(f"{operator}.even", name, f"{argument} has shape {shape} and dim is {dim}")
    return dim % len(shape)
