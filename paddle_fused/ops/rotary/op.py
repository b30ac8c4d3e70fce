"""Rotary position embedding.

Shapes: B batch, S sequence length, T tokens of packed sequences, N heads, D head size, P table length.
"""

from __future__ import annotations

import paddle

from paddle_fused import ascend, contracts, native
from paddle_fused.devices import device_of
from paddle_fused.dispatch import Backend, FusedOp
from paddle_fused.sharding import Sharding, ShardingRule, numbered

from ..arguments import (
    check_one_device,
    check_tensor,
    dtype_name,
    no_16_bit_on_cpu,
    same_shape,
    wants_gradient,
)

OPERATOR = "rotary_mul"
APPLY = "apply_rotary"
MODES = ("half", "interleave")


def rotary_mul(x, cos, sin, mode: str = "half"):
    """x * cos + rotate(x) * sin.

    rotate(x) maps pairs (a, b) of the last dimension to (-b, a). The pairs are (x[i], x[i + D/2]) in mode
    ``half`` and (x[2 i], x[2 i + 1]) in mode ``interleave``. The arithmetic is float32, rounded once.

    Args:
        x: [B, S, N, D], [B, N, S, D] or [S, B, N, D], or [T, N, D] for packed sequences; D even; float32,
            bfloat16 or float16 (float64: composed only).
        cos, sin: the same shape, with x's rank and dtype. The last dimension is D, every other dimension is
            x's size or 1, such as [1, S, 1, D] and [B, S, 1, D] for x [B, S, N, D]. Both halves (or both
            elements of a pair) are used as passed.
        mode: ``"half"`` or ``"interleave"``.

    Returns:
        x's shape and dtype. Gradients flow to x, and to cos and sin if they require gradients.

    Raises:
        ValueError: for other shapes, dtypes and modes.

    Source: aclnnRotaryPositionEmbedding; torch_npu.npu_rotary_mul.
    """
    _check(OPERATOR, x, cos, sin)
    if mode not in MODES:
        contracts.refuse("rotary.mode", OPERATOR, f"the mode is {mode!r}")
    return ROTARY(x, cos, sin, mode)


def apply_rotary(q, k, cos, sin, position_ids=None):
    """``rotary_mul`` in mode half on queries and keys, with the rows of cos and sin at their positions.

    Args:
        q: [B, S, N, D], or [T, N, D] for packed sequences.
        k: q's shape with any number of heads (fewer for grouped-query attention).
        cos, sin: the table, [P, D] or [1, P, 1, D], with q's dtype. Row p belongs to position p.
        position_ids: [B, S] or [1, S] (packed: [T]), int32 or int64, from 0 to P - 1. None: 0, 1, 2, ...
            along S (packed: along T).

    Returns:
        (q, k), rotated.

    Raises:
        ValueError: for other shapes and dtypes, a table shorter than S, and positions outside the table.

    Source: Llama's apply_rotary_pos_emb; aclnnApplyRotaryPosEmb. PaddleNLP's fused path on npu ignores
    position_ids, which is correct only if positions count from 0.
    """
    for name, tensor in (("q", q), ("k", k), ("cos", cos), ("sin", sin)):
        check_tensor(APPLY, name, tensor)
    check_one_device(APPLY, q=q, k=k, cos=cos, sin=sin)
    tokens = list(q.shape[:-2])
    if len(tokens) not in (1, 2) or len(k.shape) != len(q.shape) or not same_shape(k.shape[:-2], tokens):
        raise ValueError(
            f"{APPLY}: q has shape {list(q.shape)} and k {list(k.shape)}; accepted: both [B, S, N, D] or "
            "both [T, N, D], with the same tokens."
        )
    cos, sin = _table("cos", cos, q), _table("sin", sin, q)
    if not same_shape(cos.shape, sin.shape):
        raise ValueError(
            f"{APPLY}: cos has {cos.shape[0]} positions and sin {sin.shape[0]}; accepted: equal numbers. "
            "Slice one of them."
        )
    if position_ids is None:
        length, sequence = cos.shape[0], tokens[-1]
        if 0 <= length < sequence:
            raise ValueError(
                f"{APPLY}: cos and sin have {length} positions and q has {sequence} tokens per sequence; "
                "accepted: at least one position per token. Extend the table, or pass position_ids."
            )
        if sequence < 0:  # unknown during capture
            sequence = paddle.shape(q)[len(tokens) - 1]
        shape = [*([1] * (len(tokens) - 1)), -1, 1, q.shape[-1]]
        cos, sin = (table[:sequence].reshape(shape) for table in (cos, sin))
    else:
        _check_positions(position_ids, tokens, cos.shape[0])
        check_one_device(APPLY, q=q, position_ids=position_ids)
        rows = position_ids.flatten()
        shape = [*position_ids.shape, 1, q.shape[-1]]
        cos, sin = (_gather(table, rows).reshape(shape) for table in (cos, sin))
    return rotary_mul(q, cos, sin), rotary_mul(k, cos, sin)


def _check(operator: str, x, cos, sin) -> None:
    for name, tensor in (("x", x), ("cos", cos), ("sin", sin)):
        check_tensor(operator, name, tensor)
    check_one_device(operator, x=x, cos=cos, sin=sin)
    if len(x.shape) not in (3, 4):
        contracts.refuse("rotary.layout", operator, f"x has shape {list(x.shape)}")
    if x.shape[-1] == 0 or x.shape[-1] % 2:
        raise ValueError(f"{operator}: the head size is {x.shape[-1]}; accepted: even sizes. Pad the head.")
    if not x.dtype == cos.dtype == sin.dtype:
        names = f"x is {dtype_name(x)}, cos {dtype_name(cos)} and sin {dtype_name(sin)}"
        contracts.refuse("rotary.same_dtype", operator, names)
    rows = [b if a == 1 else a for a, b in zip(cos.shape, x.shape, strict=False)][:-1]
    if not same_shape(cos.shape, sin.shape) or not same_shape([*rows, cos.shape[-1]], x.shape):
        raise ValueError(
            f"{operator}: x has shape {list(x.shape)}, cos {list(cos.shape)} and sin {list(sin.shape)}; "
            "accepted: cos and sin of equal shape with x's rank and last size; other sizes are x's or 1. "
            "Reshape them."
        )


def _table(name: str, table, q):
    """The table as [P, D]."""
    shape = list(table.shape)
    if len(shape) == 4 and shape[0] == shape[2] == 1:
        table = table.reshape([shape[1], shape[3]])
    if len(table.shape) != 2 or table.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"{APPLY}: {name} has shape {shape} and q {list(q.shape)}; accepted: [P, D] or [1, P, 1, D] with "
            "q's D."
        )
    return table


def _gather(table, rows):
    if dtype_name(table) == "float16" and device_of(table) == "cpu":  # Paddle has no such gather kernel
        return paddle.gather(table.astype("float32"), rows, axis=0).astype("float16")
    return paddle.gather(table, rows, axis=0)


def _check_positions(position_ids, tokens: list[int], length: int) -> None:
    check_tensor(APPLY, "position_ids", position_ids, ("int32", "int64"))
    shape = list(position_ids.shape)
    if not same_shape(shape, tokens) and not (len(tokens) == 2 and same_shape(shape, [1, tokens[1]])):
        raise ValueError(
            f"{APPLY}: position_ids has shape {shape}; accepted: {tokens}"
            + (f" or {[1, tokens[1]]}" if len(tokens) == 2 else "")
            + ", one position per token."
        )
    # Reading values is cheap in host memory. On a card it would synchronize with the device.
    if not native.can_read(position_ids) or 0 in shape:
        return
    lowest, highest = int(position_ids.min()), int(position_ids.max())
    if lowest < 0 or highest >= length:
        raise ValueError(
            f"{APPLY}: position_ids range from {lowest} to {highest}; accepted: 0 to {length - 1}, the rows "
            "of cos and sin. Extend the table."
        )


def _rotate(x, mode: str):
    if mode == "half":
        a, b = paddle.split(x, 2, axis=-1)
        return paddle.concat([-b, a], axis=-1)
    rows = [0 if size < 0 else size for size in x.shape[:-1]]  # in reshape, 0 keeps the size
    a, b = paddle.split(x.reshape([*rows, x.shape[-1] // 2, 2]), 2, axis=-1)
    return paddle.concat([-b, a], axis=-1).reshape([*rows, x.shape[-1]])


def _composed(x, cos, sin, mode):
    return x * cos + _rotate(x, mode) * sin


def _composed_unsupported(x, cos, sin, mode):
    return no_16_bit_on_cpu(x)


def _native(x, cos, sin, mode):
    return native.call("pf_rotary", x, cos, sin, mode == "interleave", wants_gradient(cos, sin))[0]


def _native_unsupported(x, cos, sin, mode):
    if dtype_name(x) == "float64":
        return "the host kernels do not support float64"
    return native.unsupported_reason(x, cos, sin)


def _ascend(x, cos, sin, mode):
    if _not_fused_rope(x, cos, sin, mode) is None:
        return ascend.call("fused_rope", x, cos, sin)[0]
    return _composed(x, cos, sin, mode)


def _ascend_unsupported(x, cos, sin, mode):
    reason = ascend.unsupported_reason(x, cos, sin)
    if reason is None and dtype_name(x) not in contracts.dtypes("rotary.dtype"):
        reason = contracts.reason("rotary.dtype", OPERATOR, f"x is {dtype_name(x)}")
    return reason


def _ascend_mode(x, cos, sin, mode):
    reason = _not_fused_rope(x, cos, sin, mode)
    return "fused_rope" if reason is None else f"composition of the card's kernels: {reason}"


def _not_fused_rope(x, cos, sin, mode) -> str | None:
    """The reason why the plugin's fused_rope cannot rotate these tensors, or None."""
    if mode != "half":
        return f"fused_rope does not support mode {mode}"
    if wants_gradient(cos, sin):
        return "fused_rope does not compute gradients of cos and sin"
    shape = list(x.shape)
    if len(shape) != 4 or not same_shape(cos.shape, [1, shape[1], 1, shape[3]]):
        return "fused_rope requires x [B, S, N, D] with cos and sin [1, S, 1, D]"
    multiple, below = contracts.limit("rotary.plugin_head_dim_multiple"), contracts.limit("rotary.head_dim")
    if shape[3] % multiple or shape[3] >= below:
        return f"fused_rope requires a head size below {below} that is a multiple of {multiple}"
    batch, heads = contracts.limit("rotary.batch"), contracts.limit("rotary.heads")
    if shape[0] >= batch or shape[2] >= heads:
        return f"fused_rope requires a batch size below {batch} and fewer than {heads} heads"
    return ascend.unsupported_reason(x, operators=("fused_rope",))


def _sharding_rule(x, cos, sin, mode) -> ShardingRule:
    dims = (*numbered(len(x.shape) - 1), None)  # pairs must not be split
    return ShardingRule({"x": dims, "cos": dims, "sin": dims}, (dims,))


ROTARY = FusedOp(
    OPERATOR,
    ascend=Backend(_ascend, _ascend_unsupported, _ascend_mode),
    native=Backend(_native, _native_unsupported, "pf_rotary"),
    composed=Backend(_composed, _composed_unsupported),
    sharding=Sharding(("x", "cos", "sin", "mode"), _sharding_rule),
)
