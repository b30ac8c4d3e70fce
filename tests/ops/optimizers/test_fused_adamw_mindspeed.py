"""npu_apply_fused_adamw_v2: one step of AdamW as MindSpeed calls it."""

import itertools

import numpy as np
import paddle
import pytest
from fused_adamw_training import DECAY, in_float32, train
from optimizer_rules import LEARNING_RATE, SHAPE, AdamRule, exact, gradient

from paddle_fused import FusedAdamW
from paddle_fused.compat import npu_apply_fused_adamw_v2

pytestmark = pytest.mark.sampled

FLOATS = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("grad_dtype", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_mindspeed_s_function(device, dtype, grad_dtype, amsgrad):
    """Step 3 from given moments, in all 27 combinations of dtypes, against the rule in float64."""

    def tensor(seed, dtype):
        return paddle.to_tensor(np.abs(exact(seed)).astype("float32")).astype(dtype)

    for max_dtype in FLOATS if amsgrad else ("float32",):
        param, grad, largest = tensor(0, dtype), tensor(1, grad_dtype), tensor(4, max_dtype)
        moments = [tensor(2, dtype), tensor(3, dtype)]
        rule = AdamRule(DECAY, amsgrad=amsgrad)
        rule.t, rule.m, rule.v, rule.largest = 2, np.abs(exact(2)), np.abs(exact(3)), np.abs(exact(4))
        expected = rule(np.abs(exact(0)), -np.abs(exact(1)))
        step = paddle.to_tensor([3])
        settings = (LEARNING_RATE, 0.9, 0.999, DECAY, 1e-8, amsgrad, True)
        assert npu_apply_fused_adamw_v2(param, grad, *moments, largest, step, *settings) is None
        rounding = {"float32": 1e-6, "float16": 2.0**-11, "bfloat16": 2.0**-8}
        for got, right in ((param, expected), (moments[0], rule.m), (moments[1], rule.v)):
            np.testing.assert_allclose(in_float32(got), right, rtol=rounding[dtype], atol=1e-6)
        unchanged = np.abs(exact(4))
        right = rule.largest if amsgrad else unchanged
        np.testing.assert_allclose(in_float32(largest), right, rtol=rounding[max_dtype], atol=1e-6)


def test_mindspeed_s_function_is_a_step_of_the_optimizer(on_cpu):
    param, _ = train(FusedAdamW, steps=4)
    weight, m, v = paddle.to_tensor(exact(0).astype("float32")), paddle.zeros(SHAPE), paddle.zeros(SHAPE)
    for step in range(4):
        grad = paddle.to_tensor(gradient(step).astype("float32"))
        npu_apply_fused_adamw_v2(weight, grad, m, v, None, step + 1, LEARNING_RATE, weight_decay=DECAY)
    np.testing.assert_allclose(weight.numpy(), param.numpy(), rtol=0, atol=2.0**-22)


REFUSED = {
    "beta1 of 1": ({"beta1": 1.0}, r"beta1 .*\b1\b"),
    "a negative beta2": ({"beta2": -0.1}, "beta2.*-0.1"),
    "no number of a beta": ({"beta1": float("nan")}, "beta1.*nan"),
    "a negative eps": ({"eps": -1e-8}, "eps.*-1e-08"),
    "an infinite eps": ({"eps": float("inf")}, "eps.*inf"),
    "no number of a rate": ({"lr": float("nan")}, "lr.*nan"),
    "a rate in words": ({"lr": "0.1"}, "lr.*'0.1'"),
    "an infinite decay": ({"weight_decay": float("inf")}, "weight_decay.*inf"),
    "a step in words": ({"state_step": "1"}, "state_step.*'1'"),
    "no step": ({"state_step": None}, "state_step.*None"),
    "an infinite step": ({"state_step": float("inf")}, "state_step.*inf"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_numbers_that_adamw_does_not_take_are_refused(case, on_cpu):
    changes, message = REFUSED[case]
    param, *tensors = (paddle.ones([4]) for _ in range(4))
    with pytest.raises(ValueError, match=f"npu_apply_fused_adamw_v2.*{message}"):
        npu_apply_fused_adamw_v2(param, *tensors, None, **{"state_step": 1, **changes})
    assert (param == 1).all()


@pytest.mark.parametrize("alias", [lambda x: x, lambda x: x.detach()], ids=["itself", "its view"])
def test_two_names_of_one_tensor_are_refused(alias, device):
    tensors = dict.fromkeys(("param", "grad", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"))
    for first, second in itertools.combinations(tensors, 2):
        tensors = {name: paddle.ones([4]) for name in tensors}
        tensors[second] = alias(tensors[first])
        message = f"npu_apply_fused_adamw_v2.*{first}.*{second}"
        with pytest.raises(ValueError, match=message):
            npu_apply_fused_adamw_v2(**tensors, state_step=1, amsgrad=True)


def test_neighbours_in_one_buffer_are_tensors_of_their_own(device):
    """As optimizers with one buffer for all states pass them."""
    param, grad, m, v = paddle.ones([4, 8]).unbind()
    npu_apply_fused_adamw_v2(param, grad, m, v, None, 1)
    assert (param < 1).all()
