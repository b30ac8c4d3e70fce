"""Dropout of flash_attention: its share, one mask in both passes, and the seed that it follows.

With zero queries all keys weigh the same, and with one-hot values out[i, j] = factor[i, j] / S: the output
shows the dropout mask itself.
"""

import numpy as np
import paddle
import pytest
from attention_calls import values

from paddle_fused import flash_attention, masks, use_backend

pytestmark = pytest.mark.sampled

B, N, S, RATE = 2, 3, 128, 0.25
BACKENDS = [("native", "cpu"), ("native", "npu"), ("composed", "cpu"), ("composed", "npu")]
every_backend = pytest.mark.parametrize("backend, device", BACKENDS)


def one_hot_values():
    v = paddle.eye(S).reshape([1, S, 1, S]).tile([B, 1, N, 1])
    return v


def factors(backend, device, seed, mask=None, training=True):
    """The dropout factors [B, N, S, S]: 0, or 1 / (1 - RATE)."""
    paddle.set_device("npu:0" if device == "npu" else "cpu")
    paddle.seed(seed)
    v = one_hot_values()
    q = paddle.zeros([B, S, N, S])
    with use_backend(backend, strict=True):
        out = flash_attention(q, q, v, mask, dropout=RATE, training=training)
    return values(out).transpose(0, 2, 1, 3)


@every_backend
def test_share_and_independence(backend, device):
    kept = factors(backend, device, 3) * S
    assert set(np.round(np.unique(kept), 4)) == {0.0, np.round(1 / (1 - RATE), 4)}
    kept = kept > 0
    # Five standard deviations of the mean of n independent draws.
    deviation = 5 * np.sqrt(RATE * (1 - RATE))
    assert abs(kept.mean() - (1 - RATE)) < deviation / np.sqrt(kept.size)
    for axis in range(
        4
    ):  # no batch element, head, query or key is treated differently, and neighbours differ
        others = tuple(a for a in range(4) if a != axis)
        assert np.abs(kept.mean(others) - (1 - RATE)).max() < deviation / np.sqrt(
            kept.size / kept.shape[axis]
        )
        both = (
            kept.take(range(1, kept.shape[axis]), axis) & kept.take(range(kept.shape[axis] - 1), axis)
        ).mean()
        assert abs(both - (1 - RATE) ** 2) < deviation / np.sqrt(kept.size / 2)


@every_backend
def test_a_seed_repeats_it(backend, device):
    first = factors(backend, device, 3)
    np.testing.assert_array_equal(factors(backend, device, 3), first)
    assert (factors(backend, device, 4) != first).any()


@every_backend
def test_nothing_is_dropped_outside_of_training(backend, device):
    np.testing.assert_array_equal(factors(backend, device, 3, training=False), np.float32(1 / S))


@every_backend
@pytest.mark.parametrize("mask", [None, masks.causal(), masks.documents([40, 88])], ids=repr)
def test_both_passes_use_one_mask(backend, device, mask):
    """dV = (P * R)^T dO and the output (P * R) V: with V = 1 and dO one-hot both show P * R."""
    paddle.set_device("npu:0" if device == "npu" else "cpu")
    paddle.seed(5)
    q = paddle.randn([B, S, N, 16])
    v = one_hot_values()
    v.stop_gradient = False
    with use_backend(backend, strict=True):
        padded = paddle.concat([q, paddle.zeros([B, S, N, S - 16])], -1)
        out = flash_attention(padded, padded, v, mask, dropout=RATE, scale=0.25)
        weight = paddle.eye(S).reshape([1, S, 1, S]).tile([B, 1, N, 1])
        (v_grad,) = paddle.grad(out, [v], weight)
    # out[b, i, n, j] is P * R of query i and key j, v_grad[b, j, n, i] as well.
    np.testing.assert_allclose(values(out), values(v_grad).transpose(0, 3, 2, 1), rtol=0, atol=1e-6)
    visible = np.ones((S, S), bool) if mask is None else ~mask.to_dense(S)
    assert not values(out).transpose(0, 2, 1, 3)[..., ~visible].any()


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_gradient_of_the_query_uses_the_same_mask(device):
    """A loss that is linear in the dropped probabilities: differences along a direction, under one seed."""
    paddle.set_device("npu:0" if device == "npu" else "cpu")
    random = np.random.default_rng(0)
    q, k, v, weight, direction = (
        paddle.to_tensor(random.standard_normal((1, 32, 2, 8)).astype(np.float32)) for _ in range(5)
    )
    q.stop_gradient = k.stop_gradient = False

    def out(query, key):
        paddle.seed(9)
        with use_backend("native", strict=True):
            return flash_attention(query, key, v, masks.causal(), dropout=0.5)

    gradients = paddle.grad(out(q, k), [q, k], weight)
    step = 1e-2
    for position, gradient in enumerate(gradients):
        moved = [
            [x + sign * step * direction if index == position else x for index, x in enumerate((q, k))]
            for sign in (1, -1)
        ]
        difference = values(((out(*moved[0]) - out(*moved[1])) * weight).sum()) / (2 * step)
        slope = values((gradient * direction).sum())
        # The truncation of central differences is step^2 of the third derivative.
        assert abs(difference - slope) < 2e-2 * max(1, abs(slope)), (position, difference, slope)
