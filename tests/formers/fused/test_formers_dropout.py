"""ERNIE-4.5's dropout before its sums of residuals, by dropout_add_rms_norm."""

import numpy as np
import paddle
import pytest
from fused_models.comparison import array, assert_one_distribution, built, random_batch, results
from fused_models.formers import BY_NAME

import paddle_fused
from llm_npu.surgery import apply_fused_kernels
from llm_npu.surgery.batch import Batch
from llm_npu.surgery.explain import explain
from llm_npu.surgery.residual_sums import NORM, residual_sum

pytestmark = pytest.mark.sampled

LAYERS = 2
PROBABILITY = 0.3
DROPOUT = {"hidden_dropout_prob": PROBABILITY}
FAMILIES = {"ernie4.5": 2 * LAYERS, "ernie4.5-moe": LAYERS}  # and the number of their fused sums


def calls(family, model) -> dict[str, int]:
    paddle_fused.reset_dispatch_log()
    results(family, model, random_batch(), "add_rms_norm")
    ran = paddle_fused.dispatch_log()
    return {entry.operator: entry.count for entry in ran if entry.operator.endswith("add_rms_norm")}


@pytest.mark.parametrize("name", FAMILIES)
def test_sums_are_fused_with_dropout_in_training_and_without_it_in_evaluation(name, device):
    family, sums = BY_NAME[name], FAMILIES[name]
    model = built(family, "add_rms_norm", **DROPOUT)
    assert calls(family, model) == {"add_rms_norm": sums}
    model.train()
    assert calls(family, model) == {"dropout_add_rms_norm": sums}
    model = built(family, "add_rms_norm")
    model.train()
    assert calls(family, model) == {"add_rms_norm": sums}


def test_a_sum_is_that_of_float64_under_the_mask_of_the_operator(device):
    """float32: the error may be a few roundings of the largest value."""
    layer = built(BY_NAME["ernie4.5"], "add_rms_norm", **DROPOUT).model.layers[0]
    layer.train()
    norm = layer.post_attention_layernorm
    random = np.random.default_rng(0)
    x, residual = (random.standard_normal((3, 5, 128)).astype(np.float32) for _ in range(2))
    tensors = [paddle.to_tensor(x), paddle.to_tensor(residual)]
    paddle.seed(7)
    states = residual_sum(layer, NORM, tensors[1], tensors[0], layer.hidden_dropout)
    out = norm(states)
    paddle.seed(7)
    arguments = (*tensors, norm.weight, None, PROBABILITY, norm.variance_epsilon)
    *_, mask = paddle_fused.dropout_add_rms_norm(*arguments, return_dropout_mask=True)
    assert 0.6 < mask.numpy().mean() < 0.8
    exact = x.astype(np.float64) * mask.numpy() / (1 - PROBABILITY) + residual
    root = np.sqrt((exact**2).mean(-1, keepdims=True) + norm.variance_epsilon)
    for computed, expected in ((states, exact), (out, exact / root * array(norm.weight))):
        assert np.abs(array(computed) - expected).max() < 8 * 2**-24 * np.abs(expected).max()


def test_the_gradient_is_that_of_the_losses_drawn(on_cpu):
    """With one seed, a step along the gradient lowers the loss by what the gradient says."""
    family = BY_NAME["ernie4.5"]
    model = built(family, "add_rms_norm", **DROPOUT)
    model.train()
    weight = model.model.layers[0].self_attn.o_proj.weight

    def step():
        paddle.seed(3)
        return results(family, model, random_batch(), "add_rms_norm")

    name = next(name for name, parameter in model.named_parameters() if parameter is weight)
    gradient = step()[name]
    direction = gradient / np.linalg.norm(gradient)
    width, values = 1e-2, array(weight)
    losses = []
    for sign in (1, -1):
        weight.set_value((values + sign * width * direction).astype(np.float32))
        losses.append(step()["loss"])
    slope = (losses[0] - losses[1]) / (2 * width)
    np.testing.assert_allclose(slope, np.linalg.norm(gradient), rtol=2e-2)


def test_the_table_of_operators_names_it(on_npu):
    model = BY_NAME["ernie4.5"].build(**DROPOUT)
    report = apply_fused_kernels(model, ["add_rms_norm"])
    for training, name in ((True, "dropout_add_rms_norm"), (False, "add_rms_norm")):
        model.train() if training else model.eval()
        rows = explain(model, report, Batch(2, 16, "float32"))
        assert [row.operator for row in rows] == [name] * 2 * LAYERS


def test_another_dropout_is_computed_by_its_layer(on_cpu):
    family = BY_NAME["ernie4.5"]
    model = built(family, "add_rms_norm", **DROPOUT)
    model.train()
    for layer in model.model.layers:
        layer.hidden_dropout.axis = 0  # one draw for all elements of a row
    assert calls(family, model) == {}


@pytest.mark.slow
def test_fused_and_unfused_losses_have_one_distribution(on_cpu):
    assert_one_distribution(BY_NAME["ernie4.5"], "add_rms_norm", **DROPOUT)
