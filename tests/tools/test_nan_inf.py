"""--check_nan_inf names the layer, the operator and what went in, on every device."""

import math

import numpy as np
import paddle
import pytest
import tiny_models

from llm_npu.numerics.nan_inf import NonFiniteCheck, describe_nonfinite
from llm_npu.surgery import apply_fused_kernels

LAYER = "llama.layers.1.mlp.down_proj"


@pytest.fixture
def model(device):
    llama = tiny_models.build("llama")
    apply_fused_kernels(llama)
    return llama.train()


def step(model):
    def training_step():
        ids = paddle.to_tensor(np.arange(24).reshape(2, 12))
        loss = model(input_ids=ids, labels=ids)[0]
        loss.backward()
        model.clear_gradients()
        return float(loss)

    return training_step


def stopped(model, **switches) -> str:
    check = NonFiniteCheck(model, **{"operators": True, "backward": True, **switches})
    with pytest.raises(ValueError) as caught:
        check.around(step(model))()
    assert not paddle.get_flags(["FLAGS_check_nan_inf"])["FLAGS_check_nan_inf"]
    return str(caught.value)


def changed(model, compute, path: str = LAYER):
    """The output of a layer goes through ``compute``, which is part of its forward."""
    layer = dict(model.named_sublayers())[path]
    forward = layer.forward
    layer.forward = lambda *inputs: compute(forward(*inputs))


def test_a_healthy_step_passes_and_gives_its_result(model):
    run = step(model)
    assert math.isfinite(NonFiniteCheck(model, operators=True, backward=True).around(run)())


def test_an_operator_in_the_forward_pass(model):
    changed(model, lambda out: paddle.log(out - out.abs() - 1))
    text = stopped(model)
    assert f"the output of the operator log (fp32) in {LAYER} " in text and "1,536 NaN" in text
    assert "finite. " in text


@pytest.mark.sampled(1)
def test_a_bad_weight(model):
    weight = dict(model.named_parameters())[f"{LAYER}.weight"]
    values = weight.numpy()
    values[0, 0] = float("inf")
    weight.set_value(values)
    text = stopped(model)
    assert f"in {LAYER} " in text and "its weight contains 1 infinities" in text


@pytest.mark.sampled(1)
def test_an_operator_in_the_backward_pass(model):
    # sqrt(0) = 0 has an infinite derivative.
    changed(model, lambda out: out + paddle.sqrt(out * 0))
    text = stopped(model)
    assert "the output of the operator sqrt_grad (fp32) in the backward pass of" in text
    assert f"in the backward pass of {LAYER} " in text


def test_layers_alone_as_on_a_card(model):
    changed(model, lambda out: paddle.log(out - out.abs() - 1))
    text = stopped(model, operators=False)
    assert f"the output of {LAYER} contains 1,536 NaN among 1,536 elements (float32 [2, 12, 64])" in text
    assert "finite. " in text


def test_layers_alone_in_the_backward_pass(model):
    changed(model, lambda out: out + paddle.sqrt(out * 0))
    text = stopped(model, operators=False)
    assert "the gradient of the output of llama.layers.1.mlp" in text
    assert f"backward pass of {LAYER}" in text


@pytest.mark.slow
@pytest.mark.sampled(1)
def test_fp16_overflows_on_purpose_in_the_backward_pass_only(model):
    changed(model, lambda out: out + paddle.sqrt(out * 0))
    run = NonFiniteCheck(model, operators=True, backward=False).around(step(model))
    assert math.isfinite(run())
    assert not paddle.get_flags(["FLAGS_check_nan_inf"])["FLAGS_check_nan_inf"]
    changed(model, lambda out: paddle.log(out - out.abs() - 1))
    with pytest.raises(ValueError, match="operator log"):
        run()


def test_other_errors_stay_what_they_are(model):
    def raises():
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        NonFiniteCheck(model, operators=True, backward=True).around(raises)()


def test_what_a_tensor_holds():
    assert describe_nonfinite(paddle.ones([3])) == ""
    bad = paddle.to_tensor([float("nan"), float("inf"), 1.0]).astype("bfloat16")
    assert describe_nonfinite(bad) == "1 NaN and 1 infinities among 3 elements (bfloat16 [3])"
