"""Calls of rms_norm, add_rms_norm, dropout_add_layer_norm and dropout_add_rms_norm."""

import functools

import paddle
import pytest
from norm_calls import EPSILON, call, tensors

from paddle_fused import add_rms_norm, compat, dropout_add_layer_norm, dropout_add_rms_norm, rms_norm

DROPOUT_NORMS = ("dropout_add_layer_norm", "dropout_add_rms_norm")

# (norm, rule, {argument: (dtype, shape)}); x is [4, 8]
WRONG_TENSORS = [
    ("rms_norm", "rms_norm.dtype", {"x": ("int32", [4, 8])}),
    ("rms_norm", "rms_norm.gamma_dtype", {"weight": ("float16", [8])}),
    ("rms_norm", "rms_norm.shape", {"weight": ("float32", [4])}),
    ("rms_norm", "rms_norm.shape", {"weight": ("float32", [2, 4, 8])}),
    ("rms_norm", "rms_norm.shape", {"x": ("float32", [4, 0]), "weight": ("float32", [0])}),
    ("rms_norm", "rms_norm.shape", {"x": ("float32", [1] * 8 + [8])}),
    ("add_rms_norm", "add_rms_norm.dtype", {"x": ("int32", [4, 8])}),
    ("add_rms_norm", "add_rms_norm.dtype", {"weight": ("float16", [8])}),
    ("add_rms_norm", "add_rms_norm.dtype", {"residual": ("float16", [4, 8])}),
    ("add_rms_norm", "add_rms_norm.residual", {"residual": ("float32", [1, 8])}),
    ("add_rms_norm", "add_rms_norm.shape", {"weight": ("float32", [4])}),
]
WRONG_TENSORS += [
    (norm, f"dropout_add_norm.{rule}", {name: wrong})
    for norm in DROPOUT_NORMS
    for rule, name, wrong in (
        ("dtype", "x", ("int32", [4, 8])),
        ("x0", "x", ("float32", [4, 0])),
        ("weight", "weight", ("float16", [8])),
        ("weight", "weight", ("float32", [4, 8])),
        ("residual", "residual", ("float32", [1, 8])),
        ("residual", "residual", ("int32", [4, 8])),
        ("bias", "bias", ("float16", [8])),
        ("bias", "bias", ("float32", [4])),
        ("dtype", "rowscale", ("float16", [4])),
        ("rowscale", "rowscale", ("float32", [4, 1])),
        ("dtype", "layerscale", ("float16", [8])),
        ("layerscale", "layerscale", ("float32", [4])),
    )
]


def _with_wrong_tensors(norm, wrong):
    replacements = {name: paddle.ones(shape, dtype) for name, (dtype, shape) in wrong.items()}
    call(norm, {**tensors(norm, (4, 8), place="npu"), **replacements})


def _x_and_weight():
    return paddle.ones([4, 8]), paddle.ones([8])


def _in_float64(function):
    x, weight = (tensor.astype("float64") for tensor in _x_and_weight())
    return function(x, x, weight, None, 0.0, EPSILON)


def _on_ones(function, *rest):
    """``function`` of x, residual and weight, then ``rest``."""
    x, weight = _x_and_weight()
    function(x, x, weight, *(weight if argument == "weight" else argument for argument in rest))


def _gradient_of_one_dimension():
    x, weight = paddle.ones([8]), paddle.ones([8])
    x.stop_gradient = False
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("VIRTUAL_NPU_CANN", "9.1.0")
        compat.npu_rms_norm(x, weight)


CALLS = [(rule, functools.partial(_with_wrong_tensors, norm, wrong)) for norm, rule, wrong in WRONG_TENSORS]
CALLS += [
    ("rms_norm.gradient_rank", _gradient_of_one_dimension),
    ("rms_norm.epsilon", functools.partial(_on_ones, lambda x, _, weight: rms_norm(x, weight, -1.0))),
    ("add_rms_norm.epsilon", functools.partial(_on_ones, add_rms_norm, float("nan"))),
    ("dropout_add_norm.epsilon", functools.partial(_on_ones, dropout_add_layer_norm, None, 0.0, -1.0)),
    ("dropout_add_norm.epsilon", functools.partial(_on_ones, dropout_add_rms_norm, None, 0.0, -1.0)),
    ("dropout_add_norm.dropout", functools.partial(_on_ones, dropout_add_layer_norm, None, 1.5, EPSILON)),
    ("dropout_add_norm.dropout", functools.partial(_on_ones, dropout_add_rms_norm, None, -0.1, EPSILON)),
    (
        "dropout_add_norm.rms_bias",
        functools.partial(_on_ones, compat.npu_dropout_add_rms_norm, "weight", 0.0, EPSILON),
    ),
]
# float64 is in the public functions' dtypes, not in CANN's.
CALLS += [
    ("rms_norm.dtype", lambda: compat.npu_rms_norm(*(x.astype("float64") for x in _x_and_weight()))),
    ("dropout_add_norm.dtype", lambda: _in_float64(compat.npu_dropout_add_layer_norm)),
    ("dropout_add_norm.dtype", lambda: _in_float64(compat.npu_dropout_add_rms_norm)),
]
