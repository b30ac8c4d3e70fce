"""Views made contiguous on npu: transposed ones, slices, and those that only as_strided creates."""

import numpy as np
import paddle
import pytest
from precision import with_threads

pytestmark = pytest.mark.sampled

DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
VIEWS = {
    "transposed": lambda x: x.transpose([1, 0, 2, 3]),
    "last two": lambda x: x.transpose([0, 1, 3, 2]),
    "first is last": lambda x: x.transpose([1, 2, 3, 0]),
    "axes reversed": lambda x: x.transpose([3, 2, 1, 0]),
    "rows": lambda x: x[1:, 2:5],
    "every second": lambda x: x[..., ::2],
    "a column": lambda x: x[..., 3],
    "backwards": lambda x: x[::-1, :, ::-2],
    "columns backwards": lambda x: x[..., ::-1].transpose([0, 1, 3, 2]),
    "rows transposed": lambda x: x[:, 1:6].transpose([0, 3, 1, 2]),
    "nothing": lambda x: x[:, 2:2].transpose([3, 2, 1, 0]),
}


def numbers(dtype, *shape):
    """Values that every dtype represents; bfloat16 as float32."""
    drawn = np.random.default_rng(0).integers(0, 100, shape)
    return drawn.astype("float32" if dtype == "bfloat16" else dtype)


def assert_dense(view, wanted):
    dense = view.contiguous()
    assert dense.is_contiguous()
    assert dense.dtype == view.dtype
    actual = dense.astype("float32") if dense.dtype == paddle.bfloat16 else dense
    np.testing.assert_array_equal(actual.numpy(), wanted)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_views(dtype, name, on_npu):
    values = numbers(dtype, 3, 7, 37, 19)
    view = VIEWS[name](paddle.to_tensor(values).astype(dtype))
    assert name == "nothing" or not view.is_contiguous()
    assert_dense(view, VIEWS[name](values))


@pytest.mark.parametrize("sizes", [(1, 1), (1, 70), (70, 1), (31, 33), (64, 64), (129, 65)], ids=str)
@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float32", "complex128"])
def test_transposed_matrices(dtype, sizes, on_npu):
    values = numbers(dtype, *sizes)
    assert_dense(paddle.to_tensor(values).astype(dtype).t(), values.T)


def test_threads_share_the_work(on_npu):
    view = paddle.to_tensor(numbers("float32", 700, 500)).t()
    assert with_threads(1, lambda: [view.contiguous()]) == with_threads(4, lambda: [view.contiguous()])


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (3, 3), (1, 5), (7, 2)], ids=str)
def test_strides_that_overlap_or_leave_gaps(strides, on_npu):
    values = np.arange(200, dtype="float32")
    view = paddle.as_strided(paddle.to_tensor(values), [5, 9], list(strides), offset=4)
    wanted = np.lib.stride_tricks.as_strided(values[1:], (5, 9), [4 * stride for stride in strides])
    assert_dense(view, wanted)


def random_view(random):
    """Sizes and strides of up to six dimensions, which fit 4096 elements, and the number of the first one."""
    rank = random.integers(0, 7)
    while True:
        sizes = random.choice([1, 2, 3, 5, 17, 40], rank)
        strides = random.choice([0, 1, 1, 2, 3, 16, 17, 64], rank)
        for i in reversed(range(rank - 1)):
            if random.random() < 0.3:  # lies like one with the next dimension
                strides[i] = strides[i + 1] * sizes[i + 1]
        span = int(((sizes - 1) * strides).sum())
        if span < 4096 and sizes.prod() < 100_000:
            return sizes.tolist(), strides.tolist(), int(random.integers(0, 4096 - span))


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "int64", "complex128"])
def test_random_views(dtype, on_npu):
    random = np.random.default_rng(0)
    values = numbers(dtype, 4096)
    tensor = paddle.to_tensor(values).astype(dtype)
    for _ in range(100):
        sizes, strides, first = random_view(random)
        view = paddle.as_strided(tensor, sizes, strides, offset=first * tensor.element_size())
        steps = [stride * values.itemsize for stride in strides]
        assert_dense(view, np.lib.stride_tricks.as_strided(values[first:], sizes, steps))
