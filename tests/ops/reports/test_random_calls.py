"""Random calls of every operator: legal ones agree with float64, and corrupted ones are refused or computed.

A call with a corrupted tensor must raise ValueError with a sentence, or agree with the composed operator.
"""

import numpy as np
import paddle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddle_fused import registry
from paddle_fused.dispatch import use_backend

pytestmark = pytest.mark.slow

# Far above the effect of rounding on values of about one, far below that of a wrong element.
TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-1, "float16": 2e-2}
# Beyond it only signs are compared: Paddle's cross entropy limits a token's loss to 1e20, ours does not, and
# a mean over hundreds of tokens may contain a single such token.
ABSURD = 1e17
HUGE = "huge values"


def resized(array, random):
    shape, axis = list(array.shape), int(random.integers(array.ndim))
    shape[axis] = max(0, shape[axis] + int(random.choice([-1, 1])))
    return np.resize(array, shape) if array.size else np.zeros(shape, array.dtype)


CORRUPTIONS = {
    "a dimension one longer or shorter": resized,
    "one dimension more": lambda array, _: array[None],
    "one dimension": lambda array, _: array.reshape(-1),
    "no element": lambda array, _: array[:0],
    "integers": lambda array, _: array.astype("int32"),
    HUGE: lambda array, _: array * 0 + (1 << 40) if array.dtype.kind == "i" else array * 1e30,
}


@pytest.mark.parametrize("operator", sorted(registry.operators()))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1),
    device=st.sampled_from(["cpu", "npu"]),
    corruption=st.none() | st.sampled_from(sorted(CORRUPTIONS)),
)
def test_any_call_is_right_or_refused(operator, seed, device, corruption):
    random = np.random.default_rng(seed)
    case = registry.find(operator).random_case(random)
    arrays = {name: array for name, array in case.arrays(random).items() if array is not None}
    dtype = str(random.choice(case.dtypes))
    if corruption == HUGE and not case.is_stable:
        corruption = None
    if corruption:
        name = str(random.choice(sorted(arrays)))
        if arrays[name].ndim:
            arrays[name] = CORRUPTIONS[corruption](arrays[name], random)
    try:
        results = computed(case, arrays, dtype, device, random)
    except ValueError as error:
        assert corruption, f"a legal call in {dtype} on {device} was refused: {error}"
        assert str(error).strip()
        return
    # An accepted call must agree with the definition in the same precision.
    with use_backend("composed", strict=True):
        expected = computed(case, arrays, dtype, "npu", random)
    rounded = {name: in_dtype(array, dtype, name in case.keep_float32) for name, array in arrays.items()}
    if not corruption:
        outputs = case.golden(rounded)
        expected |= {f"output {i}": np.asarray(output) for i, output in enumerate(outputs)}
    for name, value in results.items():
        if corruption and difference(value, expected[name], TOLERANCE[dtype]):
            # A softmax of huge values depends on their last bits: we may be right where 16 bits are not.
            # Where the definition is NaN (Paddle's gradient of silu below -709), any result is accepted.
            exact = in_float64(case, rounded, random).get(name, expected[name])
            value = np.where(np.isnan(exact), np.nan, value) if value.shape == exact.shape else value
            expected[name] = exact
        assert not difference(value, expected[name], TOLERANCE[dtype]), (name, dtype, device, corruption)


def in_float64(case, rounded, random) -> dict:
    """The definition in float64; empty if it refuses float64 together with a float32 tensor."""
    try:
        with use_backend("composed", strict=True):
            return computed(case, rounded, "float64", "cpu", random)
    except ValueError:
        return {}


def computed(case, arrays, dtype: str, device: str, random) -> dict:
    """The outputs, and the gradients of their sum."""
    given_tensors = tensors(case, arrays, dtype, device, random)
    outputs = case.call(given_tensors)
    results = {f"output {i}": as_array(output) for i, output in enumerate(outputs)}
    if case.gradients:
        sum(output.astype("float32").sum() for output in outputs).backward()
        for name in case.gradients:
            if name in given_tensors and given_tensors[name].grad is not None:
                results[f"gradient of {name}"] = as_array(given_tensors[name].grad)
    return results


def tensors(case, arrays, dtype: str, device: str, random) -> dict:
    place = paddle.CustomPlace("npu", 0) if device == "npu" else paddle.CPUPlace()
    paddle.device.set_device("npu:0" if device == "npu" else "cpu")
    detached = {}
    for name, array in arrays.items():
        floating = np.issubdtype(array.dtype, np.floating)
        values = array.astype(np.float32) if floating else array
        # Every other tensor is a transposed view: the same values, non-contiguous.
        transposed = array.ndim > 1 and random.random() < 0.5
        tensor = paddle.to_tensor(values.T.copy() if transposed else values, place=place)
        if floating:
            tensor = tensor.astype("float32" if name in case.keep_float32 else dtype)
        tensor = tensor.transpose(list(range(array.ndim))[::-1]) if transposed else tensor
        detached[name] = tensor.detach()
        detached[name].stop_gradient = not floating or name not in case.gradients
    return detached


def as_array(tensor):
    return tensor.detach().astype("float32").cpu().numpy().astype(np.float64)


def in_dtype(array, dtype: str, keep_float32: bool):
    if not np.issubdtype(array.dtype, np.floating):
        return array
    narrow = "float32" if keep_float32 else dtype
    return as_array(paddle.to_tensor(array.astype(np.float32), place=paddle.CPUPlace()).astype(narrow))


def difference(output, truth, tolerance: float) -> str | None:
    if output.shape != np.shape(truth):
        return f"shape {output.shape} instead of {np.shape(truth)}"
    if output.size == 0:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.abs(truth[np.isfinite(truth)]).max(initial=1.0)
        same = (np.abs(output - truth) <= tolerance * scale) | (output == truth)
        # Where the definition is NaN, 0 is accepted, too: an ignored token with an infinite weight.
        same |= ~np.isfinite(output) & ~np.isfinite(truth) | np.isnan(truth) & (output == 0)
        same |= (np.minimum(np.abs(output), np.abs(truth)) > ABSURD) & (output * truth > 0)
    return None if same.all() else f"{(~same).sum()} of {output.size} elements are wrong"
