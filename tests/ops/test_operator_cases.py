"""Every case of every operator, on every backend, device and dtype: accurate, or refused with a reason."""

import numpy as np
import pytest

from paddle_fused import BackendError
from paddle_fused.dispatch import BACKENDS
from paddle_fused.parity import Case
from paddle_fused.registry import all_cases

CASES = all_cases()
pytestmark = pytest.mark.sampled(key=lambda parameters: parameters["case"].operator)
STEP = 1e-5


@pytest.mark.parametrize("case", CASES, ids=str)
def test_golden_and_composed_agree_on_the_gradient(case):
    """Directional differences of the float64 golden equal the gradients of the composed operator in float64.

    With a step of 1e-5 the truncation (1e-10) and the cancellation (1e-16 / 1e-5) both stay far below 1e-6.
    """
    prepared = Case(case, case.dtypes[0])
    random = np.random.default_rng(1)
    for name in case.gradients:
        gradient = prepared.truth[f"gradient of {name}"]
        array = prepared.arrays[name]
        direction = random.standard_normal(array.shape)

        def loss(shift, name=name, array=array, direction=direction):
            outputs = case.golden({**prepared.arrays, name: array + shift * direction})
            return sum(np.vdot(o, g) for o, g in zip(outputs, prepared.output_gradients, strict=True))

        difference = (loss(STEP) - loss(-STEP)) / (2 * STEP)
        scale = np.linalg.norm(gradient) * np.linalg.norm(direction) + 1e-12
        assert abs(difference - np.vdot(gradient, direction)) <= 1e-6 * scale, name


@pytest.mark.parametrize(
    ("case", "dtype"),
    [pytest.param(case, dtype, id=f"{case}, {dtype}") for case in CASES for dtype in case.dtypes],
)
def test_every_backend_is_as_accurate_as_composed(case, dtype):
    prepared = Case(case, dtype)
    ran = []
    for backend in BACKENDS:
        for device in ("cpu", "npu"):
            try:
                tensors = prepared.measure(backend, device)
            except BackendError as error:
                assert error.reasons[backend].strip(), (backend, device)
                continue
            ran.append((backend, device))
            for name, accuracy in tensors.items():
                assert accuracy.passed, f"{backend} on {device}, {name}: {accuracy}"
    assert ("composed", "npu") in ran
