"""The bounds of ``paddle_fused.parity``: an error beyond the ceiling fails with any baseline."""

import math
from dataclasses import replace

import numpy as np
import paddle
import pytest

import paddle_fused
from paddle_fused import dispatch, paddle_release
from paddle_fused.ops.case import FLOATS, OpCase
from paddle_fused.parity import CEILING, ROUNDING, Case


def scaled(factor: float) -> OpCase:
    """x * x on backends that are all, like the baseline, wrong by ``factor`` in the dtype under test."""

    def call(tensors):
        x = tensors["x"]
        return (x * x if x.dtype == paddle.float64 else x * x * factor,)

    return OpCase(
        operator="none",
        name="a planted error",
        arrays=lambda random: {"x": 1 + random.random((4, 64))},
        call=call,
        golden=lambda arrays: (arrays["x"] * arrays["x"],),
        gradients=("x",),
    )


def failures(factor: float, dtype: str) -> list[str]:
    accuracies = Case(scaled(factor), dtype).measure("native", "npu")
    return [name for name, accuracy in accuracies.items() if not accuracy.passed]


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_error_that_all_backends_share_is_held_against_the_ceiling(dtype):
    unit = 2 * ROUNDING[dtype]
    assert failures(1 + CEILING[dtype] / 4 * unit, dtype) == []
    assert failures(1 + CEILING[dtype] * 2 * unit, dtype) == ["output 0", "gradient of x"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_no_number_fails(dtype):
    assert failures(math.nan, dtype) == ["output 0", "gradient of x"]
    assert failures(math.inf, dtype) == ["output 0", "gradient of x"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_error_of_one_backend_in_every_draw_fails(dtype, monkeypatch):
    def call(tensors):
        x = tensors["x"]
        chosen = dispatch.explain_dispatch(lambda: paddle_fused.swiglu(x)).chosen
        return (x * x * (1 if chosen == "composed" else factor),)

    # More than the roundings of both sides explain; with a ceiling that lets it pass.
    factor = 1 + CEILING[dtype] / 2.5 * 2 * ROUNDING[dtype]
    monkeypatch.setattr(f"{Case.__module__}.CEILING", {dtype: 4 * CEILING[dtype]})
    accuracies = Case(replace(scaled(1), call=call), dtype).measure("native", "npu")
    assert [name for name, accuracy in accuracies.items() if not accuracy.passed] == [
        "output 0",
        "gradient of x",
    ]


def test_the_rounding_of_float16_on_the_cpu_is_that_of_paddle_s_cast():
    """Plain Paddle's error there is judged by it: releases before 3.2 round toward zero."""
    numbers = np.random.default_rng(0).uniform(1, 2, 1000).astype(np.float32)
    cast = paddle.to_tensor(numbers, place=paddle.CPUPlace()).astype("float16").numpy().astype(np.float32)
    halves = np.abs(cast - numbers).max() / 2.0**-11
    assert halves <= paddle_release.float16_rounding_on_cpu() < halves + 1
