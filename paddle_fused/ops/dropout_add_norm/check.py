"""Argument checks of `dropout_add_layer_norm` and `dropout_add_rms_norm`, for every backend."""

from __future__ import annotations

from paddle_fused import contracts

from ..arguments import (
    COMPOSED_FLOATS,
    FLOAT64_NOTE,
    check_is_tensor,
    check_number,
    check_one_device,
    dtype_name,
    same_shape,
)


def check(operator: str, x0, residual, weight, bias, dropout_p, epsilon, rowscale, layerscale) -> None:
    """Raises ContractError for the first violated rule, ValueError for a non-tensor."""
    tensors = {
        "x0": x0,
        "residual": residual,
        "weight": weight,
        "bias": bias,
        "rowscale": rowscale,
        "layerscale": layerscale,
    }
    for name, tensor in tensors.items():
        if tensor is not None or name in ("x0", "weight"):
            check_is_tensor(operator, name, tensor)
    check_one_device(operator, **tensors)

    def rule(key: str, is_kept: bool, *names: str) -> None:
        if not is_kept:
            received = ", ".join(
                f"{n} is {dtype_name(tensors[n])} {list(tensors[n].shape)}" for n in ("x0", *names)
            )
            note = FLOAT64_NOTE if key == "dtype" else ""
            contracts.refuse(f"dropout_add_norm.{key}", operator, received, note)

    dtype, shape = dtype_name(x0), list(x0.shape)
    rule("x0", len(shape) > 0 and shape[-1] != 0)
    rule("dtype", dtype in COMPOSED_FLOATS)
    wider = (dtype, "float32")
    rule("weight", same_shape(weight.shape, shape[-1:]) and dtype_name(weight) in wider, "weight")
    if residual is not None:
        rule("residual", same_shape(residual.shape, shape) and dtype_name(residual) in wider, "residual")
    if bias is not None:
        is_kept = same_shape(bias.shape, weight.shape) and dtype_name(bias) == dtype_name(weight)
        rule("bias", is_kept, "weight", "bias")
    if rowscale is not None:
        rule("dtype", dtype_name(rowscale) == dtype, "rowscale")
        rule("rowscale", same_shape(rowscale.shape, shape[:-1]), "rowscale")
    if layerscale is not None:
        rule("dtype", dtype_name(layerscale) == dtype, "layerscale")
        rule("layerscale", same_shape(layerscale.shape, shape[-1:]), "layerscale")
    if not 0 <= check_number(operator, "dropout_p", dropout_p) <= 1:
        contracts.refuse("dropout_add_norm.dropout", operator, f"dropout_p is {dropout_p}")
    if not check_number(operator, "epsilon", epsilon) >= 0:
        contracts.refuse("dropout_add_norm.epsilon", operator, f"epsilon is {epsilon}")
