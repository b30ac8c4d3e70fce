"""gelu on npu, exact and with the tanh approximation: one pass over memory in the tensors' own dtype."""

from math import erf

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from precision import DTYPES, assert_as_accurate_as_composed, assert_is_gradient, npu, values, with_threads

pytestmark = pytest.mark.sampled

SHAPES = [(20, 256), (1,), (3, 5, 17), (2, 40001)]
ROOT = np.sqrt(2 / np.pi)


def truth(x, approximate):
    if approximate:
        return 0.5 * x * (1 + np.tanh(ROOT * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(erf, otypes=[float])(x / np.sqrt(2)))


def true_gradient(x, dy, approximate):
    if approximate:
        t = np.tanh(ROOT * (x + 0.044715 * x**3))
        return 0.5 * dy * (1 + t + x * (1 - t * t) * ROOT * (1 + 0.134145 * x**2))
    share = 0.5 * (1 + np.vectorize(erf, otypes=[float])(x / np.sqrt(2)))
    return dy * (share + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi))


def composed(x, approximate):
    if approximate:
        return 0.5 * x * (1 + paddle.tanh(ROOT * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + paddle.erf(x * 2**-0.5))


def inputs(shape, dtype):
    random = np.random.default_rng(0)
    x, dy = 3 * random.standard_normal(shape), random.standard_normal(shape)
    return npu(x, dtype), npu(dy, dtype, requires_grad=False)


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_output_and_gradient(shape, dtype, approximate):
    x, dy = inputs(shape, dtype)
    out, noise_floor = F.gelu(x, approximate), composed(x, approximate)
    assert out.dtype == x.dtype
    x64, dy64 = values(x), values(dy)
    assert_as_accurate_as_composed(out, noise_floor, truth(x64, approximate), "out")
    expected = true_gradient(x64, dy64, approximate)
    assert_is_gradient(lambda a: (truth(a, approximate) * dy64).sum(), [x64], [expected])
    (gradient,), (rough,) = paddle.grad([out], [x], [dy]), paddle.grad([noise_floor], [x], [dy])
    assert_as_accurate_as_composed(gradient, rough, expected, "dx")


@pytest.mark.parametrize("approximate", [False, True])
def test_small_results_keep_their_digits(approximate):
    """Far to the left 1 + erf cancels; the kernel computes the tail itself."""
    x = npu(np.linspace(-4.9, -1, 1000), "float32")
    x64 = values(x)
    exact = np.vectorize(lambda v: _tail(v) * v, otypes=[float])(x64)
    expected = truth(x64, True) if approximate else exact
    np.testing.assert_allclose(values(F.gelu(x, approximate)), expected, rtol=4e-6)


def _tail(x):
    from math import erfc

    return 0.5 * erfc(-x / 2**0.5)


@pytest.mark.parametrize("approximate", [False, True])
def test_extreme_values(approximate):
    x = npu([-1e30, -1e4, -20.0, -0.0, 0.0, 20.0, 1e4, 1e30, np.inf, np.nan], "float32")
    out = F.gelu(x, approximate)
    np.testing.assert_array_equal(out.numpy(), [0, 0, 0, 0, 0, 20, 1e4, np.float32(1e30), np.inf, np.nan])
    (gradient,) = paddle.grad([out], [x])
    np.testing.assert_array_equal(gradient.numpy()[:8], [0, 0, 0, 0.5, 0.5, 1, 1, 1])


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_any_number_of_threads(dtype, approximate):
    x, dy = inputs((64, 1025), dtype)

    def compute():
        out = F.gelu(x, approximate)
        return [out, *paddle.grad([out], [x], [dy])]

    assert with_threads(1, compute) == with_threads(2, compute)


def test_no_elements():
    x, dy = inputs((0, 8), "bfloat16")
    out = F.gelu(x)
    assert [out.shape, *(g.shape for g in paddle.grad([out], [x], [dy]))] == [[0, 8]] * 2
