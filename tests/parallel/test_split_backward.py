"""Linear layers with a split backward pass have the gradients of Paddle's, the weight's at once or later."""

import numpy as np
import paddle
import pytest

from llm_npu.parallel import split_backward

zero_bubble = pytest.importorskip("paddle.distributed.fleet.meta_parallel.zero_bubble_utils")
pytestmark = pytest.mark.sampled
ROWS, INPUTS, OUTPUTS = 6, 5, 3


@pytest.fixture(params=[False, True], ids=["at once", "later"])
def later(request, monkeypatch):
    monkeypatch.setattr(zero_bubble.WeightGradStore, "enabled", request.param)
    return request.param


def values(seed: int) -> list[np.ndarray]:
    """An input, a weight and the gradient of the output, in float64."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in ((ROWS, INPUTS), (INPUTS, OUTPUTS), (ROWS, OUTPUTS))]


def compute_now() -> None:
    """Compute the weight gradients that the last backward pass left for later."""
    zero_bubble.WeightGradStore.flush()
    zero_bubble.WeightGradStore.pop()


def test_gradients_are_those_of_the_product(later, seed):
    """Of two micro batches; the error is at most twice that of Paddle's layer."""
    x, w, dy = values(seed)
    layer, plain = (paddle.nn.Linear(INPUTS, OUTPUTS, bias_attr=False) for _ in range(2))
    with_bias = paddle.nn.Linear(OUTPUTS, 2)
    assert split_backward.apply(paddle.nn.Sequential(layer, with_bias)) == 1
    errors = []
    for linear in (plain, layer):
        linear.weight.set_value(w.astype("float32"))
        inputs = paddle.to_tensor(x.astype("float32"), stop_gradient=False)
        for micro_batch in (1, 2):
            linear(inputs).backward(paddle.to_tensor(dy.astype("float32")))
            if later and linear is layer:
                assert micro_batch > 1 or linear.weight.grad is None
                compute_now()
        of_weight, of_input = linear.weight.grad.numpy() - 2 * x.T @ dy, inputs.grad.numpy() - 2 * dy @ w.T
        errors.append([np.abs(error).max() for error in (of_weight, of_input)])
    for error, baseline in zip(errors[1], errors[0], strict=True):
        assert error <= 2 * baseline


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_gradients_under_auto_cast_have_the_dtypes_of_their_tensors(later, level, seed):
    """In O1 the weight is float32, and bfloat16 in O2; the input is float32, as a norm's result can be."""
    x, w, dy = values(seed)
    layer, plain = (paddle.nn.Linear(INPUTS, OUTPUTS, bias_attr=False) for _ in range(2))
    for linear in (layer, plain):
        linear.weight.set_value(w.astype("float32"))
        if level == "O2":
            linear.to(dtype="bfloat16")
    split_backward.apply(paddle.nn.Sequential(layer))
    gradients = []
    for linear in (layer, plain):
        inputs = paddle.to_tensor(x.astype("float32"), stop_gradient=False)
        with paddle.amp.auto_cast(level=level, dtype="bfloat16"):
            y = linear(inputs)
        y.backward(paddle.to_tensor(dy.astype("float32")).astype(y.dtype))
        if later and linear is layer:
            compute_now()
        assert (inputs.grad.dtype, linear.weight.grad.dtype) == (inputs.dtype, linear.weight.dtype)
        gradients.append((inputs.grad, linear.weight.grad))
    for split, whole in zip(*gradients, strict=True):
        assert paddle.equal_all(split.astype("float32"), whole.astype("float32"))
