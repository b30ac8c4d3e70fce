"""GPT's dropout: the operator between its layers against float64, and the distribution of its losses."""

import numpy as np
import paddle
import pytest
from fused_models.comparison import array, assert_one_distribution, built
from fused_models.families import BY_NAME

import paddle_fused

GPT = BY_NAME["gpt"]
DROPOUT = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
EPSILON = 1e-5


def test_a_norm_is_that_of_float64_under_the_mask_of_the_operator(device):
    """float32: the error may be a few roundings of the largest value."""
    norm = built(GPT, "all").gpt.decoder.layers[0].norm2
    weight, bias = array(norm.weight), array(norm.bias)
    random = np.random.default_rng(0)
    x, residual = (random.standard_normal((3, 5, 128)).astype(np.float32) for _ in range(2))
    norm.train()
    paddle.seed(7)
    out, states = norm(paddle.to_tensor(x), paddle.to_tensor(residual), 0.3)
    paddle.seed(7)
    _, _, mask = paddle_fused.dropout_add_layer_norm(
        *map(paddle.to_tensor, (x, residual)),
        *(norm.weight, norm.bias, 0.3, EPSILON),
        prenorm=True,
        return_dropout_mask=True,
    )
    assert 0.6 < mask.numpy().mean() < 0.8
    exact = x.astype(np.float64) * mask.numpy() / 0.7 + residual
    centred = exact - exact.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * weight + bias
    for actual, expected in ((states, exact), (out, normed)):
        assert np.abs(array(actual) - expected).max() < 8 * 2**-24 * np.abs(expected).max()


@pytest.mark.slow
def test_fused_and_unfused_losses_have_one_distribution():
    paddle.set_device("npu:0")
    assert_one_distribution(GPT, "all", **DROPOUT)
