"""FusedAdamW against the float64 update rule and against paddle.optimizer.AdamW, which it replaces."""

import numpy as np
import paddle
import pytest
from fused_adamw_training import DECAY, error, in_float32, train, truth, weights_of
from optimizer_rules import LEARNING_RATE, LOW, AdamRule, exact, gradient, parameter

from paddle_fused import FusedAdamW, dispatch_log, reset_dispatch_log, use_backend
from paddle_fused.ops.fused_adamw.op import Settings, State, adamw_step

pytestmark = pytest.mark.sampled

# ---- 100 steps


@pytest.mark.parametrize("amsgrad", [False, True])
def test_a_hundred_steps_are_nearer_to_float64_than_paddle_s(on_cpu, amsgrad):
    expected = truth(rule=AdamRule(DECAY, amsgrad=amsgrad))
    fused, paddle_s = (train(cls, amsgrad=amsgrad) for cls in (FusedAdamW, paddle.optimizer.AdamW))
    assert error(fused, expected) <= error(paddle_s, expected) < 1e-4


def test_the_first_step_is_as_exact_as_its_roundings(on_cpu):
    """The stored powers are rounded, and 1 - beta^t would lose digits here; the step count does not."""
    expected = truth(steps=2)
    assert error(train(FusedAdamW, steps=2), expected) <= 4 * 2.0**-24 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", LOW)
def test_a_hundred_steps_with_master_weights(device, dtype):
    """The gradients are exact in 16 bits, so the master weights equal float32 weights."""
    param, optimizer = trained = train(FusedAdamW, dtype, multi_precision=True)
    bound = error(train(paddle.optimizer.AdamW), truth())
    assert error(trained, truth()) <= 2 * bound
    rounded = paddle.to_tensor(weights_of(param, optimizer)).astype(dtype)
    np.testing.assert_array_equal(in_float32(param), in_float32(rounded))


@pytest.mark.parametrize("dtype", LOW)
def test_as_paddle_s_with_master_weights_on_npu(dtype, on_npu):
    fused, other = (train(cls, dtype, multi_precision=True) for cls in (FusedAdamW, paddle.optimizer.AdamW))
    np.testing.assert_allclose(weights_of(*fused), weights_of(*other), rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["native", "composed"])
@pytest.mark.parametrize("dtype", LOW)
def test_16_bits_without_master_weights_are_computed_in_float32(on_cpu, dtype, backend):
    """One step: only the weight itself is rounded to 16 bits."""
    with use_backend(backend, strict=True):
        param, _ = train(FusedAdamW, dtype, steps=1)
    rounded = paddle.to_tensor(truth(steps=1).astype("float32")).astype(dtype)
    np.testing.assert_array_equal(in_float32(param), in_float32(rounded))


# ---- what the arguments change


def halved(_):
    return 0.5


OPTIONS = {
    "plain": ({}, lambda: AdamRule(DECAY), 1),
    "amsgrad": ({"amsgrad": True}, lambda: AdamRule(DECAY, amsgrad=True), 1),
    "maximize": ({"maximize": True}, lambda: AdamRule(DECAY), -1),
    "lr_ratio": ({"lr_ratio": halved}, lambda: AdamRule(DECAY, lr=LEARNING_RATE / 2), 1),
    "without decay": ({"apply_decay_param_fun": lambda name: name != "weight"}, lambda: AdamRule(0.0), 1),
    "weight_decay 0": ({"weight_decay": 0.0}, lambda: AdamRule(0.0), 1),
    "betas as tensors": (
        {"beta1": paddle.to_tensor([0.9], place="cpu"), "beta2": paddle.to_tensor([0.999], place="cpu")},
        lambda: AdamRule(DECAY),
        1,
    ),
    "a scheduler": (
        {"learning_rate": paddle.optimizer.lr.LambdaDecay(LEARNING_RATE, lambda _: 0.5)},
        lambda: AdamRule(DECAY, lr=LEARNING_RATE / 2),
        1,
    ),
}


@pytest.mark.parametrize("backend", ["ascend", "native", "composed"])
@pytest.mark.parametrize("option", OPTIONS)
def test_options(device, option, backend):
    if backend == "ascend" and device == "cpu":
        with use_backend(backend, strict=True), pytest.raises(ValueError, match="the tensors are on cpu"):
            train(FusedAdamW, steps=1)
        return
    arguments, rule, sign = OPTIONS[option]
    expected = truth(20, rule(), sign)
    with use_backend(backend, strict=True):
        for dtype in ("float32", "bfloat16"):
            trained = train(FusedAdamW, dtype, steps=20, multi_precision=True, **arguments)
            assert error(trained, expected) < 1e-5, dtype


def test_moments_of_16_bits(device):
    """The powers of beta have 16 bits, too, and a host kernel does not count steps by them."""
    reset_dispatch_log()
    param, optimizer = train(FusedAdamW, "float16", steps=1, use_lowprecision_moment=True)
    moment = optimizer._get_accumulator_master("moment1", param)
    assert moment.dtype == paddle.float16
    np.testing.assert_allclose(in_float32(moment), 0.1 * gradient(0), rtol=2.0**-10)
    (ran,) = dispatch_log()
    if device == "cpu":
        assert ran.backend == "composed" and "the powers of beta are float16" in ran.refused["native"]
    else:
        assert all(key in ran.mode for key in ("composition", "moments in float32"))


def test_float64(on_cpu):
    param, _ = train(FusedAdamW, "float64")
    np.testing.assert_allclose(param.numpy(), truth(), rtol=0, atol=1e-8)  # the learning rate is float32
    other = train(FusedAdamW, "float32", steps=3, grad_dtype="float64")
    assert error(other, truth(3)) < 1e-6


def test_an_update_that_is_skipped(device):
    """As static AMP skips it where a gradient is infinite."""
    tensors = [paddle.ones([4]) for _ in range(5)]
    powers = [paddle.to_tensor([beta], place="cpu") for beta in (0.9, 0.999)]
    param, grad, moment1, moment2, largest = tensors
    for skips in (True, False):
        state = State(
            paddle.to_tensor([0.1]), moment1, moment2, *powers, moment2_max=largest,
            skip_update=paddle.to_tensor([skips]),
        )  # fmt: skip
        adamw_step(param, grad, state, Settings())
        assert bool((param == 1).all()) == skips
        assert (float(powers[0]) == np.float32(0.9)) == skips


def test_parameter_groups(device):
    with paddle.utils.unique_name.guard():
        first, second = (parameter(exact(0), "float32", name=name) for name in ("first", "second"))
        groups = [
            {"params": [first]},
            {"params": [second], "weight_decay": 0.0, "learning_rate": 0.5, "beta1": 0.9},
        ]
        optimizer = FusedAdamW(LEARNING_RATE, parameters=groups, weight_decay=DECAY)
        for step in range(20):
            for param in (first, second):
                param.grad = paddle.to_tensor(gradient(step).astype("float32"))
            optimizer.step()
    np.testing.assert_allclose(first.numpy(), truth(20), atol=1e-5)
    np.testing.assert_allclose(second.numpy(), truth(20, AdamRule(0.0, lr=LEARNING_RATE / 2)), atol=1e-5)


@pytest.mark.parametrize(
    "clip",
    [paddle.nn.ClipGradByGlobalNorm(0.5), paddle.nn.ClipGradByNorm(0.5), paddle.nn.ClipGradByValue(0.1)],
    ids=lambda clip: type(clip).__name__,
)
def test_clipping(device, clip):
    fused, paddle_s = (train(cls, steps=20, grad_clip=clip) for cls in (FusedAdamW, paddle.optimizer.AdamW))
    np.testing.assert_allclose(in_float32(fused[0]), in_float32(paddle_s[0]), atol=1e-5)


def test_gradients_of_another_dtype(device):
    """The gradients are exact in 16 bits, so their dtype does not matter."""
    plain = train(FusedAdamW, steps=5)
    for dtype in LOW:
        np.testing.assert_array_equal(
            in_float32(train(FusedAdamW, steps=5, grad_dtype=dtype)[0]), in_float32(plain[0])
        )
        master = train(FusedAdamW, dtype, steps=5, grad_dtype="float32", multi_precision=True)
        assert error(master, truth(5)) < 1e-6


def test_empty_and_single_parameters(device):
    for shape in ((0, 3), (1,), ()):
        param = parameter(np.zeros(shape), "float32")
        optimizer = FusedAdamW(LEARNING_RATE, parameters=[param])
        param.grad = paddle.ones(shape)
        optimizer.step()
        np.testing.assert_allclose(param.numpy(), np.full(shape, -LEARNING_RATE), rtol=1e-5)
