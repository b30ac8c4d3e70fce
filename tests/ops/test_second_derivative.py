"""Second derivatives of every operator: right, or an error; Paddle leaves those of custom operators out."""

import numpy as np
import paddle
import pytest

from paddle_fused import BackendError, use_backend
from paddle_fused.dispatch import BACKENDS
from paddle_fused.parity import Case
from paddle_fused.registry import all_cases

CASES = [case for case in all_cases() if case.gradients]
# What a composition may answer: Paddle says which of its operators has no second derivative, or for some only
# that a slot of gradients is empty.
REFUSED = "second derivative|create_graph=True|doesn't have any grad op|empty GradSlotMeta"


def tensors_of(case, device: str) -> dict[str, paddle.Tensor]:
    paddle.set_device(device)
    tensors = {}
    for name, array in Case(case, "float32").arrays.items():
        is_float = np.issubdtype(array.dtype, np.floating)
        tensors[name] = paddle.to_tensor(array.astype(np.float32) if is_float else array)
        tensors[name].stop_gradient = name not in case.gradients
    return tensors


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.sampled(key=lambda parameters: (parameters["case"].operator, parameters["backend"]))
def test_a_second_derivative_is_right_or_refused(case, backend, device):
    tensors = tensors_of(case, device)
    inputs = [tensors[name] for name in case.gradients]

    def gradients():
        with use_backend(backend, strict=True):
            loss = sum((output.astype("float32") ** 2).sum() for output in case.call(tensors))
        return paddle.grad([loss], inputs, create_graph=True)

    def slope(direction):
        """Of the gradients' squares, by central differences of first derivatives."""
        squares = []
        for sign in (1, -1):
            for tensor, step in zip(inputs, direction, strict=True):
                tensor.set_value(tensor + sign * 1e-2 * step)
            with use_backend(backend, strict=True):
                loss = sum((output.astype("float32") ** 2).sum() for output in case.call(tensors))
            squares.append(sum(float((g**2).sum()) for g in paddle.grad([loss], inputs)))
            for tensor, step in zip(inputs, direction, strict=True):
                tensor.set_value(tensor - sign * 1e-2 * step)
        return (squares[0] - squares[1]) / 2e-2

    try:
        first = gradients()
    except BackendError as error:
        pytest.skip(error.reasons[backend])
    except Exception as error:
        assert any(words in str(error) for words in REFUSED.split("|")), error
        return
    if all(tensor.size == 0 for tensor in inputs):
        return
    try:
        sum((gradient**2).sum() for gradient in first).backward()
    except Exception as error:
        assert any(words in str(error) for words in REFUSED.split("|")), error
        return
    assert backend != "native", "host kernels have no second derivative"
    direction = [paddle.randn(tensor.shape) for tensor in inputs]
    derivative = sum(
        float((tensor.grad * step).sum())
        for tensor, step in zip(inputs, direction, strict=True)
        if tensor.grad is not None
    )
    size = sum(float(tensor.grad.abs().sum()) for tensor in inputs if tensor.grad is not None)
    assert abs(derivative - slope(direction)) <= 0.02 * size + 1e-3
