"""The steps of a plan around the operator: tokens shared by sequences, and fully masked rows.

Legend: B batch, S sequence, T packed tokens, N heads, D head size.
"""

from __future__ import annotations

import paddle

from paddle_fused.devices import device_of

from ..arguments import dtype_name
from .call import AttentionCall
from .layout import as_tokens, with_heads, without_heads

_ORDER = {"BSND": [0, 2, 1], "BSH": [0, 2, 1], "SBH": [2, 0, 1], "BNSD": [0, 1, 2]}  # of [B, N, S]


def constant(plan, name: str, values, dtype: str):
    """``values`` as a tensor on the current device, cached in the plan for the calls of other layers."""
    if not paddle.in_dynamic_mode():
        return paddle.to_tensor(values, dtype=dtype)
    key = name, paddle.device.get_device()
    if key not in plan.constants:
        plan.constants[key] = paddle.to_tensor(values, dtype=dtype)
    return plan.constants[key]


def packed(x, heads: int, call: AttentionCall):
    """[T, N, D] from any layout but TND, with a copy of each shared token for every sequence."""
    x = as_tokens(x, call.layout, heads)
    if call.plan.tokens is None:
        return x
    return _gather(x, constant(call.plan, "tokens", call.plan.tokens, "int64"))


def unpacked(x, call: AttentionCall):
    """[T, ...] to [B * S, ...]: each token's result in the first sequence that contains the token."""
    if call.plan.own is None:
        return x
    return _gather(x, constant(call.plan, "own", call.plan.own, "int64"))


def _gather(x, index):
    """Rows of x. Paddle does not support `gather` in float16 on the CPU place."""
    if dtype_name(x) == "float16" and device_of(x) == "cpu":
        return paddle.gather(x.astype("float32"), index).astype("float16")
    return paddle.gather(x, index)


def zeroing(run):
    """A backend's ``run`` that zeroes the plan's fully masked rows and their gradients."""

    def zeroed(query, key, value, bias, call: AttentionCall):
        out, *others = run(query, key, value, bias, call)
        if call.plan.fully_masked is not None:
            fully_masked = constant(call.plan, "fully_masked", call.plan.fully_masked, "bool")
            out = zero_queries(out, fully_masked, call.layout, call.heads.query)
        return out, *others

    return zeroed


def zero_queries(out, fully_masked, layout: str, heads: int):
    """Zeros where ``fully_masked`` ([B or 1, N or 1, S]) is True, as with CANN's inner_precise 2."""
    fully_masked = fully_masked.transpose(_ORDER[layout]).unsqueeze(-1)
    wide = with_heads(out, layout, heads)
    if device_of(out) == "cpu":  # Paddle does not support 16-bit `where` there
        wide = wide.astype("float32")
    zeroed = paddle.where(fully_masked, paddle.zeros([], wide.dtype), wide).astype(out.dtype)
    return without_heads(zeroed, layout)
