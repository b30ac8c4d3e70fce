"""Gradients of every operator on every backend: frozen inputs, no_grad, inputs changed after the forward."""

from itertools import combinations

import numpy as np
import paddle
import pytest

from paddle_fused import BackendError, use_backend
from paddle_fused.dispatch import BACKENDS
from paddle_fused.parity import Case
from paddle_fused.registry import all_cases

CASES = [case for case in all_cases() if case.gradients]
pytestmark = pytest.mark.sampled(
    key=lambda parameters: (parameters["call"].case.operator, parameters["call"].backend)
)


class Call:
    """A case on a backend and a device."""

    def __init__(self, case, backend: str, device: str):
        self.case, self.backend, self.device = case, backend, device
        self.prepared = None

    def __str__(self) -> str:
        return f"{self.case}, {self.backend}, {self.device}"

    def inputs(self, frozen=()) -> dict[str, paddle.Tensor]:
        paddle.set_device(self.device)
        self.prepared = self.prepared or Case(self.case, "float32")
        tensors = {}
        for name, array in self.prepared.arrays.items():
            is_float = np.issubdtype(array.dtype, np.floating)
            tensors[name] = paddle.to_tensor(array.astype(np.float32) if is_float else array)
            tensors[name].stop_gradient = name not in self.case.gradients or name in frozen
        return tensors

    def outputs(self, tensors) -> list[paddle.Tensor]:
        try:
            with use_backend(self.backend, strict=True):
                return list(self.case.call(tensors))
        except BackendError as error:
            pytest.skip(error.reasons[self.backend])

    def loss(self, outputs) -> paddle.Tensor:
        weights = [paddle.to_tensor(g.astype(np.float32)) for g in self.prepared.output_gradients]
        return sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True))

    def gradients(self, frozen=()) -> dict[str, np.ndarray | None]:
        tensors = self.inputs(frozen)
        self.loss(self.outputs(tensors)).backward()
        grads = {name: tensors[name].grad for name in self.case.gradients}
        return {name: None if grad is None else grad.numpy() for name, grad in grads.items()}


CALLS = [
    Call(case, backend, device)
    for case in CASES
    for backend in BACKENDS
    for device in ("cpu", "npu:0")
    if (backend, device) != ("ascend", "cpu")
]
every_call = pytest.mark.parametrize("call", CALLS, ids=str)


@every_call
def test_a_frozen_tensor_leaves_the_other_gradients_as_they_are(call):
    names = call.case.gradients
    all_gradients = call.gradients()
    for frozen in (set(some) for count in range(1, len(names)) for some in combinations(names, count)):
        gradients = call.gradients(frozen)
        assert {name for name, gradient in gradients.items() if gradient is None} == frozen
        for name in set(names) - frozen:
            np.testing.assert_allclose(
                gradients[name], all_gradients[name], rtol=1e-5, atol=1e-6, err_msg=f"{frozen}"
            )


@every_call
def test_what_needs_no_gradient_says_so(call):
    with paddle.no_grad():
        outputs = call.outputs(call.inputs())
    assert all(output.stop_gradient for output in outputs)
    again = call.outputs(call.inputs(call.case.gradients))
    assert all(output.stop_gradient for output in again)
    for output, other in zip(outputs, again, strict=True):
        np.testing.assert_allclose(output.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


@every_call
def test_an_input_that_was_changed_in_place_is_an_error_or_does_not_matter(call):
    expected = call.gradients()
    for changed in call.case.gradients:
        leaves = call.inputs()
        tensors = {name: leaf if leaf.stop_gradient else leaf * 1.0 for name, leaf in leaves.items()}
        outputs = call.outputs(tensors)
        tensors[changed].scale_(3.0)
        try:
            call.loss(outputs).backward()
        except Exception as error:
            assert "inplace operation" in str(error) or "changed in place" in str(error), error
            continue
        for name, gradient in expected.items():
            np.testing.assert_allclose(
                leaves[name].grad.numpy(), gradient, rtol=1e-4, atol=1e-5, err_msg=changed
            )
