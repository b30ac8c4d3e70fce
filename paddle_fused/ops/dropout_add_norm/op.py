"""Scaling, dropout, residual addition and norm: `dropout_add_layer_norm` and `dropout_add_rms_norm`.

Shapes: ... any leading dimensions, usually (B, S); H the normalized dimension.
"""

from __future__ import annotations

from functools import partial

import paddle
import paddle.nn.functional as F

from paddle_fused import ascend, native
from paddle_fused.dispatch import Backend, FusedOp
from paddle_fused.sharding import Sharding, ShardingRule, numbered

from ..arguments import dtype_name, with_gradient
from ..rms_norm.op import no_float64, normalised, plugin_rms_norm, wide_dtype
from .check import check


def dropout_add_layer_norm(
    x0,
    residual,
    weight,
    bias,
    dropout_p,
    epsilon,
    rowscale=None,
    layerscale=None,
    prenorm=False,
    residual_in_fp32=False,
    return_dropout_mask=False,
    *,
    training=True,
):
    """out = LayerNorm(pre) * weight + bias,  pre = Dropout(x0 * rowscale * layerscale) + residual.

    LayerNorm(z) = (z - mean(z)) / sqrt(mean((z - mean(z))^2) + epsilon), over the last dimension. It is
    computed from ``pre`` after rounding to its dtype. Dropout multiplies kept elements by 1 / (1 -
    dropout_p). The arithmetic is float32.

    Args:
        x0: [..., H], float32, bfloat16 or float16 (float64: composed only).
        residual: x0's shape, x0's dtype or float32; or None.
        weight: [H], x0's dtype or float32.
        bias: [H], weight's dtype; or None.
        dropout_p: probability to drop an element, 0 to 1.
        epsilon: added to the variance; not negative.
        rowscale: x0's shape without its last dimension, x0's dtype; or None.
        layerscale: [H], x0's dtype; or None.
        prenorm: also return ``pre``.
        residual_in_fp32: keep ``pre`` in float32. No effect without a residual.
        return_dropout_mask: also return the mask.
        training: False disables dropout.

    Returns:
        out, (out, pre), (out, mask) or (out, pre, mask). Gradients flow from out and pre to every
        floating-point argument.

        - out: x0's shape and dtype.
        - pre: x0's shape and residual's dtype (float32 with residual_in_fp32), x0's dtype without a residual.
        - mask: x0's shape, bool, True where an element was kept.

    Raises:
        ContractError (a ValueError): for other shapes, dtypes and numbers.

    Source: MindSpeed docs/ops/npu_dropout_add_layer_norm.md.
    """
    check("dropout_add_layer_norm", x0, residual, weight, bias, dropout_p, epsilon, rowscale, layerscale)
    tensors = (x0, _in_float32(residual, residual_in_fp32), weight, bias, rowscale, layerscale)
    dropout = float(dropout_p) if training else 0.0
    out, pre, mask = LAYER_NORM(*tensors, dropout, float(epsilon), bool(return_dropout_mask))
    return _wanted(out, pre, mask, prenorm, return_dropout_mask)


def dropout_add_rms_norm(
    x0,
    residual,
    weight,
    bias,
    dropout_p,
    epsilon,
    rowscale=None,
    layerscale=None,
    prenorm=False,
    residual_in_fp32=False,
    return_dropout_mask=False,
    *,
    training=True,
):
    """out = round(pre * rstd) * weight + bias,  pre = Dropout(x0 * rowscale * layerscale) + residual.

    rstd = 1 / sqrt(mean(pre^2 over the last dimension) + epsilon). round() casts to weight's dtype, as in
    ``rms_norm``. Arguments, results and errors are the same as for ``dropout_add_layer_norm``.

    Source: MindSpeed docs/ops/npu_dropout_add_layer_norm.md. MindSpeed's code adds epsilon outside the root
    and ignores the bias.
    """
    check("dropout_add_rms_norm", x0, residual, weight, bias, dropout_p, epsilon, rowscale, layerscale)
    tensors = (x0, _in_float32(residual, residual_in_fp32), weight, bias, rowscale, layerscale)
    dropout = float(dropout_p) if training else 0.0
    out, pre, mask = RMS_NORM(*tensors, dropout, float(epsilon), bool(return_dropout_mask))
    return _wanted(out, pre, mask, prenorm, return_dropout_mask)


def _in_float32(residual, residual_in_fp32):
    # pre has residual's dtype. A cast is exact, and its gradient has the residual's original dtype.
    keep = residual is None or not residual_in_fp32 or dtype_name(residual) in ("float32", "float64")
    return residual if keep else residual.astype("float32")


def _wanted(out, pre, mask, prenorm, return_dropout_mask):
    results = (out, *([pre] if prenorm else []), *([mask] if return_dropout_mask else []))
    return results if len(results) > 1 else out


# ---- the definition; the composition for the card uses parts of it


def _pre_norm(x0, residual, rowscale, layerscale, dropout, with_mask, wide):
    """(pre, mask), computed in the dtype ``wide``; mask is None unless requested."""
    z = x0.astype(wide)
    if rowscale is not None:
        z = z * rowscale.astype(wide).unsqueeze(-1)
    if layerscale is not None:
        z = z * layerscale.astype(wide)
    mask = None
    if dropout > 0:
        factors = F.dropout(paddle.ones_like(z), dropout, mode="upscale_in_train")
        z = z * factors
        mask = factors.astype("bool") if with_mask else None
    elif with_mask:
        mask = paddle.ones_like(z, dtype="bool")
    if residual is not None:
        z = z + residual.astype(wide)
    pre = z.astype(x0.dtype if residual is None else residual.dtype)
    return x0.clone() if pre is x0 else pre, mask  # not x0 itself, because callers may modify outputs


def _layer_normalised(pre, weight, bias, epsilon):
    wide = wide_dtype(pre, weight)
    z = pre.astype(wide)
    z = z - z.mean(-1, keepdim=True)
    rstd = paddle.rsqrt((z * z).mean(-1, keepdim=True) + epsilon)
    return _with_bias(z * rstd * weight.astype(wide), bias)


def _rms_normalised(pre, weight, bias, epsilon):
    return _with_bias(normalised(pre, weight, epsilon)[0], bias)


def _with_bias(y, bias):
    return y if bias is None else y + bias.astype(y.dtype)


def _composed(norm, x0, residual, weight, bias, rowscale, layerscale, dropout, epsilon, with_mask):
    wide = wide_dtype(x0, *(() if residual is None else (residual,)))
    pre, mask = _pre_norm(x0, residual, rowscale, layerscale, dropout, with_mask, wide)
    return norm(pre, weight, bias, epsilon).astype(x0.dtype), pre, mask


# ---- the host kernels

_SEEDS = 2**31 - 1  # the largest bound that randint accepts


def _native(is_rms, x0, residual, weight, bias, rowscale, layerscale, dropout, epsilon, with_mask):
    # Missing tensors are passed as ``blank``, which is never read; see csrc/ops/dropout_add_norm.cc.
    if rowscale is not None and len(rowscale.shape) == 0:
        rowscale = rowscale.reshape([1])  # captured programs require a dimension
    optional = (residual, bias, rowscale, layerscale)
    has = sum(1 << bit for bit, tensor in enumerate(optional) if tensor is not None)
    blank = weight.detach()
    residual, bias, rowscale, layerscale = (blank if tensor is None else tensor for tensor in optional)
    seed = paddle.randint(0, _SEEDS, [2], dtype="int64") if 0 < dropout < 1 else blank
    out, pre, mask, _, _ = native.call(
        "pf_dropout_add_norm", x0, residual, weight, bias, rowscale, layerscale, seed,
        has, is_rms, dropout, epsilon, with_mask,
    )  # fmt: skip
    return out, pre, mask if with_mask else None


def _native_unsupported(x0, residual, weight, bias, rowscale, layerscale, dropout, epsilon, with_mask):
    tensors = (x0, residual, weight, bias, rowscale, layerscale)
    return no_float64(*tensors) or native.unsupported_reason(*tensors)


# ---- the card's kernels (MindSpeed also composes this operator)


def _ascend(norm, x0, residual, weight, bias, rowscale, layerscale, dropout, epsilon, with_mask):
    # A single addition is rounded the same way in any dtype; several steps are computed in float32.
    is_one_step = rowscale is None and layerscale is None and dropout == 0
    same = residual is None or residual.dtype == x0.dtype
    wide = x0.dtype if is_one_step and same else "float32"
    pre, mask = _pre_norm(x0, residual, rowscale, layerscale, dropout, with_mask, wide)
    # The norms require tensors of the same dtype.
    common = pre.dtype if pre.dtype == weight.dtype else "float32"
    bias = None if bias is None else bias.astype(common)
    return norm(pre.astype(common), weight.astype(common), bias, epsilon).astype(x0.dtype), pre, mask


def _layer_norm_npu(x, weight, bias, epsilon):
    # Paddle's layer_norm requires a dimension before the normalized one.
    rows = x.unsqueeze(0) if len(x.shape) == 1 else x
    return F.layer_norm(rows, weight.shape, with_gradient(weight, rows), bias, epsilon).reshape(x.shape)


def _rms_norm_npu(x, weight, bias, epsilon):
    return _with_bias(plugin_rms_norm(x, weight, epsilon)[0], bias)


def _layer_norm_npu_refuses(x0, residual, weight, bias, rowscale, layerscale, dropout, epsilon, with_mask):
    tensors = (x0, residual, weight, bias, rowscale, layerscale)
    return no_float64(*tensors) or ascend.unsupported_reason(*tensors)


def _rms_norm_npu_refuses(x0, residual, weight, bias, rowscale, layerscale, dropout, epsilon, with_mask):
    tensors = (x0, residual, weight, bias, rowscale, layerscale)
    return no_float64(*tensors) or ascend.unsupported_reason(*tensors, operators=("rms_norm_npu",))


def _sharding_rule(
    x0, residual, weight, bias, rowscale, layerscale, dropout, epsilon, with_mask
) -> ShardingRule:
    tokens = numbered(len(x0.shape) - 1)
    rows, row = (*tokens, None), (None,)
    inputs = {"x0": rows, "residual": rows, "weight": row, "bias": row, "rowscale": tokens, "layerscale": row}
    return ShardingRule(inputs, (rows, rows, rows))


_SHARDING = Sharding(
    ("x0", "residual", "weight", "bias", "rowscale", "layerscale", "dropout", "epsilon", "with_mask"),
    _sharding_rule,
)
LAYER_NORM = FusedOp(
    "dropout_add_layer_norm",
    ascend=Backend(partial(_ascend, _layer_norm_npu), _layer_norm_npu_refuses, "dropout, add and layer_norm"),
    native=Backend(partial(_native, False), _native_unsupported, "pf_dropout_add_norm"),
    composed=Backend(partial(_composed, _layer_normalised)),
    sharding=_SHARDING,
)
RMS_NORM = FusedOp(
    "dropout_add_rms_norm",
    ascend=Backend(partial(_ascend, _rms_norm_npu), _rms_norm_npu_refuses, "dropout, add and rms_norm_npu"),
    native=Backend(partial(_native, True), _native_unsupported, "pf_dropout_add_norm"),
    composed=Backend(partial(_composed, _rms_normalised)),
    sharding=_SHARDING,
)
