"""Shared by the gated activations a(x) * y of two tensors, or of the two halves of x's last dimension."""

from __future__ import annotations

from paddle_fused import contracts, native
from paddle_fused.sharding import ShardingRule, numbered

from .arguments import check_one_device, check_tensor, dtype_name, same_shape


def check_gated(operator: str, x, y) -> None:
    """Checks the rules ``<operator>.same_shape``, ``same_dtype`` and ``even`` for every backend."""
    check_tensor(operator, "x", x)
    if y is not None:
        check_tensor(operator, "y", y)
        check_one_device(operator, x=x, y=y)
        if not same_shape(x.shape, y.shape):
            received = f"x has shape {list(x.shape)} and y {list(y.shape)}"
            contracts.refuse(f"{operator}.same_shape", operator, received)
        if x.dtype != y.dtype:
            received = f"x is {dtype_name(x)} and y is {dtype_name(y)}"
            contracts.refuse(f"{operator}.same_dtype", operator, received)
    elif len(x.shape) == 0 or (x.shape[-1] >= 0 and x.shape[-1] % 2 != 0):
        contracts.refuse(f"{operator}.even", operator, f"x has shape {list(x.shape)}")


def native_refuses(x, y, *_others) -> str | None:
    """The reason why the host kernels of gated activations decline these tensors, or None."""
    if dtype_name(x) == "float64":
        return "the host kernels do not support float64"
    return native.unsupported_reason(x, y)


def gated_sharding_rule(x, y, *_others) -> ShardingRule:
    """Every dimension may be sharded, except a dimension that contains both halves."""
    if y is None:
        rows = (*numbered(len(x.shape) - 1), None)
        return ShardingRule({"x": rows}, (rows,))
    every = numbered(len(x.shape))
    return ShardingRule({"x": every, "y": every}, (every,))
