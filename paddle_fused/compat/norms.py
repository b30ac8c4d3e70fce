"""torch_npu's and MindSpeed's norms, with their argument order."""

from __future__ import annotations

from .. import contracts
from ..ops.arguments import check_ruled_tensor
from ..ops.dropout_add_norm.op import dropout_add_layer_norm, dropout_add_rms_norm
from ..ops.rms_norm.op import rms_norm_and_rstd


def npu_rms_norm(self, gamma, epsilon=1e-6):
    """(y, rstd): ``paddle_fused.rms_norm``, and rstd = 1 / sqrt(mean(self^2) + epsilon).

    rstd has self's rank, with 1 for the dimensions that gamma has, and float32. Only y has a gradient.

    Source: torch_npu.npu_rms_norm.
    """
    check_ruled_tensor("rms_norm.dtype", "npu_rms_norm", "self", self, contracts.dtypes("rms_norm.dtype"))
    y, rstd = rms_norm_and_rstd("npu_rms_norm", self, gamma, epsilon)
    return y, rstd.detach()


def npu_dropout_add_layer_norm(
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
):
    """``paddle_fused.dropout_add_layer_norm``. dropout_p is 0 where a model is not training.

    Source: MindSpeed docs/ops/npu_dropout_add_layer_norm.md. The mask is bool, as documented.
    """
    _check_dtype("npu_dropout_add_layer_norm", x0)
    return dropout_add_layer_norm(
        x0, residual, weight, bias, dropout_p, epsilon,
        rowscale, layerscale, prenorm, residual_in_fp32, return_dropout_mask,
    )  # fmt: skip


def npu_dropout_add_rms_norm(
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
):
    """``paddle_fused.dropout_add_rms_norm`` without a bias: MindSpeed's code takes one and does not add it.

    Source: MindSpeed docs/ops/npu_dropout_add_layer_norm.md. The mask is bool, as documented.
    """
    _check_dtype("npu_dropout_add_rms_norm", x0)
    if bias is not None:
        contracts.refuse("dropout_add_norm.rms_bias", "npu_dropout_add_rms_norm", "bias is given")
    return dropout_add_rms_norm(
        x0, residual, weight, bias, dropout_p, epsilon,
        rowscale, layerscale, prenorm, residual_in_fp32, return_dropout_mask,
    )  # fmt: skip


def _check_dtype(operator: str, x0) -> None:
    """The public functions compute in float64, too; the names of others promise no more than those have."""
    rule = "dropout_add_norm.dtype"
    check_ruled_tensor(rule, operator, "x0", x0, contracts.dtypes(rule))
