"""torch_npu's SwiGLU."""

from __future__ import annotations

import paddle

from .. import contracts
from ..ops.arguments import check_int, check_tensor, dtype_name, wants_gradient
from ..ops.swiglu.op import swiglu

_OPERATOR = "npu_swiglu"


def npu_swiglu(input, dim=-1):
    """``paddle_fused.swiglu`` of the two halves of input's dimension ``dim``.

    Raises ContractError (a ValueError), with CANN's error number where it has one.

    Source: torch_npu.npu_swiglu; aclnnSwiGlu and aclnnSwiGluGrad.
    """
    check_tensor(_OPERATOR, "input", input)
    if dtype_name(input) not in contracts.dtypes("swiglu.dtype"):
        contracts.refuse("swiglu.dtype", _OPERATOR, f"input is {dtype_name(input)}")
    shape = list(input.shape)
    dim = check_int(_OPERATOR, "dim", dim)
    if not -len(shape) <= dim < len(shape):
        contracts.refuse("swiglu.dim", _OPERATOR, f"dim is {dim} and input has shape {shape}")
    if shape[dim] % 2:
        contracts.refuse("swiglu.even", _OPERATOR, f"input has shape {shape} and dim is {dim}")
    if wants_gradient(input):
        row = shape[-1] * (4 if dtype_name(input) == "float32" else 2)
        if row % contracts.limit("swiglu.grad_alignment"):
            contracts.refuse("swiglu.grad_alignment", _OPERATOR, f"a row of input has {row} bytes")
    if dim in (-1, len(shape) - 1):
        return swiglu(input)
    return swiglu(*paddle.split(input, 2, axis=dim))
