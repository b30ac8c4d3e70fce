"""Residual norms with dropout.

Legend: H hidden size (the last dimension).
"""

from paddle_fused.contracts.rule import ContractRule, listed

LIMITS = {}
FLOATS = ("float32", "bfloat16", "float16")
DTYPES = {"dropout_add_norm.dtype": FLOATS}

_DROPOUT = (
    "npu_dropout_add_layer_norm",
    "npu_dropout_add_rms_norm",
    "dropout_add_layer_norm",
    "dropout_add_rms_norm",
)
_DROPOUT_DOC = "Ascend/MindSpeed docs/ops/npu_dropout_add_layer_norm.md"

RULES = (
    ContractRule(
        "dropout_add_norm.dtype",
        _DROPOUT,
        None,
        listed(FLOATS) + ", the same for x0, rowscale and layerscale",
        "Cast it with tensor.astype.",
        _DROPOUT_DOC,
    ),
    ContractRule(
        "dropout_add_norm.x0",
        _DROPOUT,
        None,
        "x0 of shape [..., H] with H above 0",
        "Reshape it; the norm is computed over the last dimension.",
        _DROPOUT_DOC,
    ),
    ContractRule(
        "dropout_add_norm.residual",
        _DROPOUT,
        None,
        "no residual, or a residual with x0's shape and with x0's dtype or float32",
        "Expand or cast it; it is not broadcast.",
        _DROPOUT_DOC,
    ),
    ContractRule(
        "dropout_add_norm.weight",
        _DROPOUT,
        None,
        "a weight of shape [H] with x0's dtype or float32, where H is x0's last dimension",
        "Reshape or cast it.",
        _DROPOUT_DOC,
    ),
    ContractRule(
        "dropout_add_norm.bias",
        _DROPOUT,
        None,
        "no bias, or a bias with weight's shape and dtype",
        "Reshape or cast it.",
        _DROPOUT_DOC,
    ),
    ContractRule(
        "dropout_add_norm.rms_bias",
        ("npu_dropout_add_rms_norm",),
        None,
        "no bias, because MindSpeed's code ignores it",
        "Pass None, or call paddle_fused.dropout_add_rms_norm, which adds the bias.",
        "MindSpeed ops/csrc/cann/npu_dropout_add_layer_norm.cpp",
    ),
    ContractRule(
        "dropout_add_norm.rowscale",
        _DROPOUT,
        None,
        "rowscale with x0's shape without the last dimension",
        "Reshape it.",
        _DROPOUT_DOC,
    ),
    ContractRule(
        "dropout_add_norm.layerscale",
        _DROPOUT,
        None,
        "layerscale of shape [H], where H is x0's last dimension",
        "Reshape it.",
        _DROPOUT_DOC,
    ),
    ContractRule(
        "dropout_add_norm.dropout",
        _DROPOUT,
        None,
        "a dropout probability from 0 to 1",
        "Pass the probability to drop an element, or 0 outside training.",
        _DROPOUT_DOC,
    ),
    ContractRule(
        "dropout_add_norm.epsilon",
        _DROPOUT,
        None,
        "a non-negative number, such as 1e-5",
        "Pass a positive epsilon to avoid a division by zero.",
        _DROPOUT_DOC,
    ),
)
