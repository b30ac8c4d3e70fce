"""A limit on the tokens of an expert: the choices that are dropped, and what the others compute."""

import math

import numpy as np
import paddle
import pytest

from llm_npu.surgery.moe import experts
from llm_npu.surgery.moe.capacity import Capacity

T, K, E = 24, 2, 4


def choices(seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    indices = np.array([random.permutation(E - seed % 2)[:K] for _ in range(T)])
    return random.random((T, K), dtype="float32"), indices


def kept_by_probability(probs, indices, capacity: int) -> np.ndarray:
    kept = np.full_like(indices, E)
    for expert in range(E):
        rows, columns = np.nonzero(indices == expert)
        best = np.argsort(-probs[rows, columns], kind="stable")[:capacity]
        kept[rows[best], columns[best]] = expert
    return kept


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("factor", [0.1, 0.8, 1.0, 1.25])
def test_the_least_probable_choices_are_dropped(factor, seed):
    probs, indices = choices(seed)
    capacity = Capacity(factor)
    kept = capacity.kept(paddle.to_tensor(probs), paddle.to_tensor(indices), E).numpy()
    wanted = kept_by_probability(probs, indices, math.ceil(factor * T * K / E))
    assert np.array_equal(kept, wanted)
    assert capacity.take_share() == pytest.approx((wanted == E).mean())
    assert math.isnan(capacity.take_share())


def test_of_equal_probabilities_the_first_tokens_are_kept():
    indices = paddle.zeros([6, 1], "int64")
    kept = Capacity(1.0).kept(paddle.full([6, 1], 0.5), indices, 2)
    assert kept.flatten().tolist() == [0, 0, 0, 2, 2, 2]


@pytest.mark.parametrize("tokens", [0, 1, T])
def test_a_large_capacity_drops_nothing(tokens):
    indices = paddle.zeros([tokens, 1], "int64")
    capacity = Capacity(E)
    assert capacity.kept(paddle.ones([tokens, 1]), indices, E) is indices
    assert tokens == 0 or capacity.take_share() == 0


class Expert(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (paddle.nn.Linear(8, 8, bias_attr=False) for _ in range(2))
        self.down_proj = paddle.nn.Linear(8, 8, bias_attr=False)


def test_dropped_choices_contribute_zeros():
    """Output and gradients equal those of a layer in which dropped choices have probability 0."""
    paddle.seed(0)
    probs, indices = choices(0)
    kept = kept_by_probability(probs, indices, 9)
    assert (kept == E).any()
    layers = [Expert() for _ in range(E)]
    results = []
    for these, weights in ((kept, probs), (indices, np.where(kept == E, 0, probs).astype("float32"))):
        tokens = paddle.to_tensor(
            np.random.default_rng(1).random((T, 8), dtype="float32"), stop_gradient=False
        )
        weights = paddle.to_tensor(weights, stop_gradient=False)
        out = experts.routed_experts(layers, tokens, weights, paddle.to_tensor(these))
        out.square().sum().backward()
        matrices = [layer.down_proj.weight.grad.numpy() for layer in layers]
        for layer in layers:
            layer.clear_gradients()
        results.append([out.numpy(), tokens.grad.numpy(), *matrices])
        assert not (these is kept and weights.grad.numpy()[kept == E].any())
    for dropped, weightless in zip(*results, strict=True):
        np.testing.assert_allclose(dropped, weightless, rtol=1e-5, atol=1e-6)
