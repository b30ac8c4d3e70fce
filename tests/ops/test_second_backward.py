"""A second backward through a PyLayer, for which Paddle ends the process, is an error."""

import numpy as np
import paddle
import pytest

from paddle_fused import flashmask_attention, linear_cross_entropy, use_backend


def loss_with_gradients():
    hidden, weight = paddle.randn([321, 35]), paddle.randn([35, 20000])
    hidden.stop_gradient = weight.stop_gradient = False
    with use_backend("native", strict=True):
        return linear_cross_entropy(hidden, weight, paddle.randint(0, 20000, [321])), [hidden, weight]


def loss_in_chunks():
    hidden, weight = paddle.randn([321, 35]), paddle.randn([35, 50])
    hidden.stop_gradient = weight.stop_gradient = False
    with use_backend("ascend", strict=True):
        return linear_cross_entropy(hidden, weight, paddle.randint(0, 50, [321])), [hidden, weight]


def attention_in_tiles():
    tensors = [paddle.randn([1, 300, 2, 16]).astype("float16") for _ in range(3)]
    for tensor in tensors:
        tensor.stop_gradient = False
    rows = np.random.default_rng(0).integers(0, 301, (1, 1, 300, 2)).astype(np.int32)
    with use_backend("ascend", strict=True):
        out = flashmask_attention(*tensors, paddle.to_tensor(rows), causal=True)
    return out.astype("float32").sum(), tensors


@pytest.mark.parametrize("retain_graph", [False, True])
@pytest.mark.parametrize("computed", [loss_with_gradients, loss_in_chunks, attention_in_tiles])
@pytest.mark.usefixtures("on_npu")
def test_a_second_backward_through_a_pylayer_is_an_error(computed, retain_graph):
    loss, _ = computed()
    loss.backward(retain_graph=retain_graph)
    with pytest.raises(
        (OSError, SystemError), match=r"a second time; accepted: once|calculate backward twice"
    ):
        loss.backward()


@pytest.mark.parametrize("computed", [loss_with_gradients, loss_in_chunks, attention_in_tiles])
@pytest.mark.usefixtures("on_npu")
def test_gradients_are_given_again_and_again(computed):
    loss, tensors = computed()
    first = [gradient.numpy() for gradient in paddle.grad([loss], tensors, retain_graph=True)]
    for _ in range(2):
        for gradient, other in zip(first, paddle.grad([loss], tensors, retain_graph=True), strict=True):
            np.testing.assert_array_equal(gradient, other.numpy())
    loss.backward()
    for gradient, tensor in zip(first, tensors, strict=True):
        np.testing.assert_array_equal(gradient, tensor.grad.numpy())
