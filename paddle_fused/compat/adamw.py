"""MindSpeed's fused AdamW, with its argument order and limits."""

from __future__ import annotations

import math
from itertools import combinations

import paddle

from .. import contracts
from ..ops.arguments import check_number, check_one_device, check_tensor, dtype_name
from ..ops.fused_adamw.op import Settings, State, adamw_step

_OPERATOR = "npu_apply_fused_adamw_v2"


@paddle.no_grad()
def npu_apply_fused_adamw_v2(
    param,
    grad,
    exp_avg,
    exp_avg_sq,
    max_exp_avg_sq,
    state_step,
    lr=1e-3,
    beta1=0.9,
    beta2=0.999,
    weight_decay=0.0,
    eps=1e-8,
    amsgrad=False,
    maximize=False,
):
    """One AdamW step in place. Updates param, exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq.

    Args:
        param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq: one shape; float32, bfloat16 or float16. The moments
            have param's dtype.
        state_step: number of this step, from 1: a number, or a one-element tensor of int64 or float32.
        lr, weight_decay, eps: finite; eps is not negative.
        beta1, beta2: in [0, 1).

    Returns None.
    Raises ContractError (a ValueError) with CANN's error number, or ValueError.

    Source: MindSpeed docs/ops/npu_apply_fused_adamw_v2.md; aclnnApplyAdamWV2.
    """
    tensors = {"param": param, "grad": grad, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    missing = [name for name, tensor in tensors.items() if tensor is None]
    if missing:
        contracts.refuse("adamw.missing", _OPERATOR, f"{' and '.join(missing)} is None")
    if amsgrad and max_exp_avg_sq is None:
        contracts.refuse("adamw.max_grad_norm", _OPERATOR, "max_exp_avg_sq is None with amsgrad")
    if amsgrad:
        tensors["max_exp_avg_sq"] = max_exp_avg_sq
    for name, tensor in tensors.items():
        check_tensor(_OPERATOR, name, tensor)
        if dtype_name(tensor) not in contracts.dtypes("adamw.dtype"):
            contracts.refuse("adamw.dtype", _OPERATOR, f"{name} is {dtype_name(tensor)}")
        if tensor.shape != param.shape:
            received = f"{name} has shape {list(tensor.shape)} and param {list(param.shape)}"
            contracts.refuse("adamw.shape", _OPERATOR, received)
    for name in ("exp_avg", "exp_avg_sq"):
        if tensors[name].dtype != param.dtype:
            received = f"{name} is {dtype_name(tensors[name])} and param {dtype_name(param)}"
            contracts.refuse("adamw.moment_dtype", _OPERATOR, received)
    check_one_device(_OPERATOR, **tensors)
    _check_memory(tensors)
    lr, beta1, beta2, weight_decay, eps = _numbers(lr, beta1, beta2, weight_decay, eps)
    step = _step(state_step)
    powers = [paddle.to_tensor([beta**step], "float32", paddle.CPUPlace()) for beta in (beta1, beta2)]
    state = State(
        learning_rate=paddle.to_tensor([lr], "float32", param.place),
        moment1=exp_avg,
        moment2=exp_avg_sq,
        beta1_pow=powers[0],
        beta2_pow=powers[1],
        moment2_max=max_exp_avg_sq if amsgrad else None,
    )
    adamw_step(param, grad, state, Settings(beta1, beta2, eps, 1.0, weight_decay, maximize))


def _check_memory(tensors) -> None:
    """Raises ValueError if two tensors share memory, because every tensor except the gradient is written."""
    for (name, tensor), (other_name, other) in combinations(tensors.items(), 2):
        if tensor is other or (tensor.size and tensor.data_ptr() == other.data_ptr()):
            raise ValueError(
                f"{_OPERATOR}: {name} and {other_name} are one tensor; accepted: distinct tensors. Clone one."
            )


def _numbers(lr, beta1, beta2, weight_decay, eps) -> list[float]:
    """The five hyperparameters as floats. Raises ValueError for other types and values out of range."""
    below_1, at_least_0 = "at least 0 and below 1", "a finite number of at least 0"
    checks = (
        ("lr", lr, "a finite number", math.isfinite),
        ("beta1", beta1, below_1, lambda beta: 0 <= beta < 1),
        ("beta2", beta2, below_1, lambda beta: 0 <= beta < 1),
        ("weight_decay", weight_decay, "a finite number", math.isfinite),
        ("eps", eps, at_least_0, lambda value: math.isfinite(value) and value >= 0),
    )
    numbers = []
    for name, value, accepted, fits in checks:
        numbers.append(check_number(_OPERATOR, name, value))
        if not fits(numbers[-1]):
            raise ValueError(f"{_OPERATOR}: {name} is {numbers[-1]:g}; accepted: {accepted}.")
    return numbers


def _step(state_step) -> float:
    if isinstance(state_step, paddle.Tensor):
        known = dtype_name(state_step) in contracts.dtypes("adamw.step_dtype")
        if not known or state_step.size != 1:
            received = f"state_step is {dtype_name(state_step)} of shape {list(state_step.shape)}"
            contracts.refuse("adamw.step", _OPERATOR, received)
    step = check_number(_OPERATOR, "state_step", state_step)
    if not 0 < step < math.inf:
        contracts.refuse("adamw.step", _OPERATOR, f"state_step is {step:g}")
    return step
