"""torch_npu's and MindSpeed's operators of a decoder layer: gated activations, norms, rotary embedding."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import paddle
import paddle.nn.functional as F

from .. import contracts
from ..ops.arguments import check_contract_dtype, check_int, check_tensor, dtype_name, wants_gradient
from ..ops.dropout_add_norm.op import dropout_add_layer_norm, dropout_add_rms_norm
from ..ops.geglu.op import geglu
from ..ops.rms_norm.op import rms_norm_and_rstd
from ..ops.rotary.op import MODES, rotary_mul
from ..ops.swiglu.op import swiglu

_ROTARY = "npu_rotary_mul"
# The dimensions of batch, sequence and heads in each 4-D layout: BNSD, BSND, SBND.
_ROTARY_LAYOUTS = ((0, 2, 1), (0, 1, 2), (1, 0, 2))


def npu_swiglu(input, dim=-1):
    """``paddle_fused.swiglu`` of the two halves of input's dimension ``dim``.

    Raises ContractError (a ValueError), with CANN's error number if there is one.

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

    Raises ContractError (a ValueError), with CANN's error number if there is one.

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
    """``dim`` counted from 0, after checking the operator's rules on dtype, dim and even sizes."""
    name, argument = f"npu_{operator}", "input" if operator == "swiglu" else "self"
    check_tensor(name, argument, tensor)
    if dtype_name(tensor) not in contracts.dtypes(f"{operator}.dtype"):
        contracts.refuse(f"{operator}.dtype", name, f"{argument} is {dtype_name(tensor)}")
    shape = list(tensor.shape)
    dim = check_int(name, "dim", dim)
    if not -len(shape) <= dim < len(shape):
        contracts.refuse(f"{operator}.dim", name, f"dim is {dim} and {argument} has shape {shape}")
    if shape[dim] >= 0 and shape[dim] % 2:  # -1 is unknown
        contracts.refuse(f"{operator}.even", name, f"{argument} has shape {shape} and dim is {dim}")
    return dim % len(shape)


def npu_rms_norm(self, gamma, epsilon=1e-6):
    """(y, rstd): ``paddle_fused.rms_norm``, and rstd = 1 / sqrt(mean(self^2) + epsilon).

    rstd is float32 and has self's rank. Its normalized dimensions (those of gamma) have size 1. Only y has a
    gradient.

    Source: torch_npu.npu_rms_norm.
    """
    check_contract_dtype("rms_norm.dtype", "npu_rms_norm", "self", self, contracts.dtypes("rms_norm.dtype"))
    if wants_gradient(self, gamma) and len(self.shape) < contracts.limit("rms_norm.gradient_rank"):
        contracts.refuse("rms_norm.gradient_rank", "npu_rms_norm", f"self (x) has shape {list(self.shape)}")
    y, rstd = rms_norm_and_rstd("npu_rms_norm", self, gamma, epsilon)
    return y, rstd.detach()


def _with_contract(function: Callable) -> Callable:
    """``function`` under MindSpeed's name, restricted to CANN's dtypes and without ``training``.

    Source: MindSpeed docs/ops/npu_dropout_add_layer_norm.md. The mask is bool, as documented.
    """
    name, own = f"npu_{function.__name__}", inspect.signature(function)
    positional = [p for p in own.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    signature = own.replace(parameters=positional)

    @functools.wraps(function)
    def call(*arguments, **options):
        bound = signature.bind(*arguments, **options).arguments
        rule = "dropout_add_norm.dtype"
        check_contract_dtype(rule, name, "x0", bound["x0"], contracts.dtypes(rule))
        if function is dropout_add_rms_norm and bound["bias"] is not None:
            # MindSpeed's code accepts a bias but does not add it.
            contracts.refuse("dropout_add_norm.rms_bias", name, "bias is not None")
        return function(*arguments, **options)

    call.__name__ = call.__qualname__ = name
    call.__signature__ = signature
    return call


npu_dropout_add_layer_norm = _with_contract(dropout_add_layer_norm)
npu_dropout_add_rms_norm = _with_contract(dropout_add_rms_norm)


def npu_rotary_mul(input, r1, r2, rotary_mode="half", rotate=None):
    """``paddle_fused.rotary_mul(input, r1, r2, rotary_mode)``, within the limits of Atlas A2 and A3.

    Args:
        input: [B, N, S, D], [B, S, N, D], [S, B, N, D], or [T, N, D] from CANN 9.1.0 on.
        r1, r2: cos and sin. N and B are 1 or input's sizes; in mode interleave both are 1.
        rotate: another rotation matrix; must be None.

    Raises ContractError (a ValueError) with CANN's error number.

    Source: torch_npu.npu_rotary_mul; aclnnRotaryPositionEmbedding and its gradient.
    """
    for name, tensor in (("input", input), ("r1", r1), ("r2", r2)):
        check_tensor(_ROTARY, name, tensor)
    if rotate is not None:
        contracts.refuse("rotary.rotate", _ROTARY, f"rotate is {type(rotate).__name__}")
    if rotary_mode not in MODES:
        contracts.refuse("rotary.mode", _ROTARY, f"rotary_mode is {rotary_mode!r}")
    if dtype_name(input) not in contracts.dtypes("rotary.dtype"):
        contracts.refuse("rotary.dtype", _ROTARY, f"input is {dtype_name(input)}")
    if not input.dtype == r1.dtype == r2.dtype:
        names = f"input is {dtype_name(input)}, r1 {dtype_name(r1)} and r2 {dtype_name(r2)}"
        contracts.refuse("rotary.same_dtype", _ROTARY, names)
    shape = list(input.shape)
    if not contracts.limit("rotary.least_dimensions") <= len(shape) <= 4:
        contracts.refuse("rotary.dimensions", _ROTARY, f"input has shape {shape}")
    if shape[-1] == 0 or shape[-1] % 2 or shape[-1] >= contracts.limit("rotary.head_dim"):
        contracts.refuse("rotary.head_dim", _ROTARY, f"the head size is {shape[-1]}")
    _check_angles(shape, list(r1.shape), list(r2.shape), rotary_mode, wants_gradient(r1, r2))
    return rotary_mul(input, r1, r2, rotary_mode)


def _check_angles(shape: list[int], r1: list[int], r2: list[int], mode: str, angle_gradients: bool) -> None:
    """Raises ContractError unless the shapes fit a layout and its limits on batch and heads."""
    received = f"input has shape {shape}, r1 {r1} and r2 {r2}"
    rows = [] if r1 != r2 else _batches_and_heads(shape, r1, mode)
    if not rows:
        contracts.refuse("rotary.angles", _ROTARY, received)
    if mode == "interleave":
        below = contracts.limit("rotary.interleaved_rows")
        if all(batch * heads >= below for batch, heads in rows):
            contracts.refuse("rotary.interleaved_rows", _ROTARY, received)
    batches, most_heads = contracts.limit("rotary.batch"), contracts.limit("rotary.heads")
    if all(batch >= batches or heads >= most_heads for batch, heads in rows):
        contracts.refuse("rotary.batch_heads", _ROTARY, received)
    most = contracts.limit("rotary.angle_gradient_rows")
    if angle_gradients and all(batch * heads > most for batch, heads in rows):
        contracts.refuse("rotary.angle_gradient_rows", _ROTARY, received)


def _batches_and_heads(shape: list[int], angles: list[int], mode: str) -> list[tuple[int, int]]:
    """(batch, heads) for each layout in which the angles have a valid shape."""
    if len(shape) != len(angles) or shape[-1] != angles[-1]:
        return []
    if len(shape) == 3:  # [T, N, D]
        shape, angles, layouts = [1, *shape], [1, *angles], ((0, 1, 2),)
    else:
        layouts = _ROTARY_LAYOUTS
    sizes = []
    for batch, sequence, heads in layouts:
        whole = [angles[d] == shape[d] for d in range(3)]
        single = [angles[d] == 1 for d in range(3)]
        shared = single[batch] and single[heads]
        by_batch = whole[batch] and (single[heads] or whole[heads])
        if whole[sequence] and (shared or (mode == "half" and by_batch)):
            sizes.append((shape[batch], shape[heads]))
    return sizes
