"""rms_norm, add_rms_norm, dropout_add_layer_norm and dropout_add_rms_norm, beyond their cases."""

import numpy as np
import paddle
import pytest
from norm_calls import EPSILON, NORMS, call, gradients, tensors
from precision import values

import paddle_fused
from paddle_fused import compat, dispatch_log, native, use_backend

pytestmark = pytest.mark.sampled


@pytest.fixture(autouse=True)
def _on_cpu():
    paddle.set_device("cpu")


@pytest.mark.parametrize("backend", ["native", "composed"])
@pytest.mark.parametrize("norm", NORMS)
def test_no_rows(norm, backend):
    t = tensors(norm, (0, 3, 8))
    with use_backend(backend, strict=True):
        outputs = call(norm, t)
        by_name = dict(zip(t, paddle.grad(outputs, list(t.values())), strict=True))
    assert [o.shape for o in outputs] == [[0, 3, 8]] * len(outputs)
    for name, gradient in by_name.items():
        assert gradient.shape == t[name].shape
        np.testing.assert_array_equal(gradient.numpy(), np.zeros(t[name].shape, np.float32))


@pytest.mark.parametrize("backend", ["native", "composed"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_infinity_and_nan_stay_in_their_row(norm, backend, value):
    t = tensors(norm, (3, 8))
    x = t["x"].numpy()
    x[1, 2] = value
    t["x"] = paddle.to_tensor(x)
    with use_backend(backend, strict=True):
        out = call(norm, t)[0].numpy()
    assert np.isfinite(out[[0, 2]]).all()
    assert np.isnan(out[1, 2])
    rest = np.delete(out[1], 2)
    if np.isnan(value) or norm == "dropout_add_layer_norm":
        assert np.isnan(rest).all()
    elif norm != "dropout_add_rms_norm":  # there the bias is what remains
        np.testing.assert_array_equal(rest, 0)


def test_large_and_small_values_do_not_overflow():
    weight = paddle.ones([64])
    for scale in (1e15, 1e-15):
        x = paddle.full([2, 64], scale, "float32")
        np.testing.assert_allclose(paddle_fused.rms_norm(x, weight, 0.0).numpy(), 1.0, rtol=1e-6)


@pytest.mark.parametrize("norm", [norm for norm in NORMS if norm != "rms_norm"])
@pytest.mark.parametrize("wanted", [0, 1])
def test_gradient_of_one_output_alone(norm, wanted):
    t = tensors(norm, (5, 24))
    inputs = {name: t[name] for name in ("x", "residual")}
    results = []
    for backend in ("native", "composed"):
        with use_backend(backend, strict=True):
            results.append(gradients([call(norm, t)[wanted]], inputs))
    for alone, together in zip(*results, strict=True):
        np.testing.assert_allclose(alone.numpy(), together.numpy(), rtol=2e-5, atol=1e-6)


def test_gradients_of_x_and_residual_do_not_share_memory():
    t = tensors("add_rms_norm", (4, 8))
    with use_backend("native", strict=True):
        sum(o.sum() for o in call("add_rms_norm", t)).backward()
    before = t["residual"].grad.numpy().copy()
    t["x"].grad.zero_()
    np.testing.assert_array_equal(t["residual"].grad.numpy(), before)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_float32_weight_of_16_bit_tensors(dtype):
    t = tensors("rms_norm", (6, 48), dtype)
    t["weight"] = paddle.linspace(0.5, 1.5, 48)
    t["weight"].stop_gradient = False
    with use_backend("native", strict=True):
        y = call("rms_norm", t)[0]
        weight_gradient = gradients([y], {"weight": t["weight"]})[0]
    assert y.dtype == t["x"].dtype
    assert weight_gradient.dtype == paddle.float32
    x, weight = values(t["x"]), values(t["weight"])
    truth = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight
    rounding = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    assert (np.abs(values(y) - truth) <= (rounding + 1e-6) * np.abs(truth)).all()  # one rounding, no second


def test_the_plugin_s_operator_refuses_a_float32_weight_of_16_bit_tensors():
    t = tensors("rms_norm", (2, 8), "bfloat16", "npu")
    with use_backend("ascend", strict=True), pytest.raises(paddle_fused.BackendError) as refused:
        paddle_fused.rms_norm(t["x"], t["weight"].astype("float32"))
    assert "x's dtype" in refused.value.reasons["ascend"]


def test_rstd_of_the_torch_npu_name():
    t = tensors("rms_norm", (2, 3, 5, 7))
    weight = paddle.ones([5, 7])
    y, rstd = compat.npu_rms_norm(t["x"], weight, EPSILON)
    assert rstd.shape == [2, 3, 1, 1]
    assert rstd.stop_gradient
    np.testing.assert_allclose(
        rstd.numpy(), 1 / np.sqrt((values(t["x"]) ** 2).mean((2, 3), keepdims=True) + EPSILON), rtol=1e-6
    )
    np.testing.assert_array_equal(y.numpy(), paddle_fused.rms_norm(t["x"], weight, EPSILON).numpy())


def test_mode_says_what_the_card_runs():
    t = tensors("add_rms_norm", (2, 8), place="npu")
    paddle_fused.reset_dispatch_log()
    call("add_rms_norm", t)
    (ran,) = dispatch_log()
    assert ran.backend == "ascend"
    assert ran.mode.startswith("add and rms_norm_npu: ") and "aclnnAddRmsNorm" in ran.mode


def test_no_tensor():
    with pytest.raises(ValueError, match="rms_norm: weight is ndarray"):
        paddle_fused.rms_norm(paddle.ones([2, 8]), np.ones(8))


def test_host_operators_refuse_what_would_read_other_memory():
    """The host operators are called directly, without the public functions' checks."""
    run = native.call
    x, weight = paddle.ones([4, 8]), paddle.ones([8])
    names = ("x0", "residual", "weight", "bias", "rowscale", "layerscale", "seed")
    arguments = {**dict.fromkeys(names, weight.detach()), "x0": x, "weight": weight}
    with pytest.raises(ValueError, match=r"pf_rms_norm: x .*\[4, 8\].* weight \[4\]"):
        run("pf_rms_norm", x, weight[:4], 1e-5)
    with pytest.raises(ValueError, match=r"pf_add_rms_norm: x .*\[4, 8\].* residual \[1, 8\]"):
        run("pf_add_rms_norm", x, x[:1], weight, 1e-5)
    for name, bit in (("residual", 1), ("bias", 2), ("rowscale", 4), ("layerscale", 8)):
        wrong = {**arguments, name: paddle.ones([3])}
        with pytest.raises(ValueError, match=rf"pf_dropout_add_norm: {name} has shape \[3\]"):
            run("pf_dropout_add_norm", *wrong.values(), bit, False, 0.0, 1e-5, True)
    with pytest.raises(ValueError, match=r"seed is float32 of shape \[8\]"):
        run("pf_dropout_add_norm", *arguments.values(), 0, False, 0.5, 1e-5, True)


@pytest.mark.parametrize("operator", ["pf_rms_norm", "pf_add_rms_norm", "pf_dropout_add_norm"])
def test_a_captured_host_operator_refuses_when_it_runs(operator):
    """Paddle would end the process if shape inference threw during capture."""

    @paddle.jit.to_static(full_graph=True)
    def program(x, weight):
        if operator == "pf_dropout_add_norm":
            weights = [weight] * 5
            return native.call(operator, x, weight, *weights, 0, False, 0.0, 1e-5, False)[0]
        inputs = [x, x, weight] if operator == "pf_add_rms_norm" else [x, weight]
        return native.call(operator, *inputs, 1e-5)[0]

    with pytest.raises(ValueError, match=rf"{operator}: (x has shape \[4, 8\] and )?weight .*\[3\]"):
        program(paddle.ones([4, 8]), paddle.ones([3]))
