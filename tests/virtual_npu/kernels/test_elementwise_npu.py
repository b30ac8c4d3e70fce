"""add, multiply, scale, cast and squared_l2_norm on npu: one pass over memory in the tensors' own dtype."""

import numpy as np
import paddle
import pytest
from precision import DTYPES, ROUNDING, npu, values, with_threads

pytestmark = pytest.mark.sampled

# The smallest part of a float16 that is subnormal; numbers of the other dtypes do not come near theirs here.
SUBNORMAL = {"float32": 0.0, "bfloat16": 0.0, "float16": 2.0**-25}
SHAPES = [
    ((3, 5), (3, 5)),
    ((3, 5), (5,)),
    ((3, 5), (3, 1)),
    ((1,), (4, 3)),
    ((5, 1, 7), (1, 6, 1)),
    ((2, 1, 4, 1), (3, 1, 5)),
    ((), (3,)),
    ((), ()),
    ((0, 3), (1, 3)),
    ((33, 1027), (33, 1027)),
    ((33, 1027), (1,)),
]
OPERATIONS = {"add": np.add, "multiply": np.multiply}


def random(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape)


def assert_rounded_once(got, truth, dtype):
    # float32 is the precision of the sum or product before that.
    bound = (ROUNDING[dtype] + 2 * ROUNDING["float32"]) * np.abs(truth) + SUBNORMAL[dtype]
    assert got.shape == list(truth.shape)
    assert str(got.dtype) == f"paddle.{dtype}"
    assert np.all(np.abs(values(got) - truth) <= bound)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_broadcast_operands(name, dtype, shapes):
    x, y = (npu(random(shape, seed), dtype, requires_grad=False) for seed, shape in enumerate(shapes))
    for a, b in ((x, y), (y, x)):
        assert_rounded_once(getattr(paddle, name)(a, b), OPERATIONS[name](values(a), values(b)), dtype)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_gradients(name, dtype, shapes):
    x, y = (npu(random(shape, seed), dtype) for seed, shape in enumerate(shapes))
    out = getattr(paddle, name)(x, y)
    dout = npu(random(out.shape, 2), dtype, requires_grad=False)
    gradients = paddle.grad([out], [x, y], [dout])
    factors = (values(y), values(x)) if name == "multiply" else (1.0, 1.0)
    for gradient, operand, factor in zip(gradients, (x, y), factors, strict=True):
        terms = values(dout) * factor
        ones = (1,) * (terms.ndim - operand.ndim) + tuple(operand.shape)
        dims = tuple(d for d, size in enumerate(ones) if size == 1)
        truth = terms.sum(dims, keepdims=True).reshape(operand.shape)
        # Sums over broadcast dimensions: a rounding in float32 for each term, or in pairs.
        magnitude = np.abs(terms).sum(dims, keepdims=True).reshape(operand.shape)
        terms_of_one = terms.size // max(1, truth.size)
        bound = ROUNDING[dtype] * np.abs(truth) + (terms_of_one + 2) * ROUNDING["float32"] * magnitude
        assert str(gradient.dtype) == f"paddle.{dtype}"
        assert np.all(np.abs(values(gradient) - truth) <= bound + SUBNORMAL[dtype])


@pytest.mark.parametrize("other", [(3, 5), (5,), (3, 1)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_of_one_operand_alone(dtype, other):
    x = npu(random((3, 5), 0), dtype)
    y = npu(random(other, 1), dtype, requires_grad=False)
    for out in (x * y, y * x):
        (gradient,) = paddle.grad([out], [x])
        np.testing.assert_array_equal(values(gradient), np.broadcast_to(values(y), (3, 5)))


@pytest.mark.parametrize("name", OPERATIONS)
def test_float32_has_the_bits_of_the_cpu_place(name):
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, 1.0000001]
    x, y = np.meshgrid(np.float32(special), np.float32(special))
    results = []
    for place in ("npu:0", "cpu"):
        operands = [paddle.to_tensor(array, place=place) for array in (x, y)]
        results.append(getattr(paddle, name)(*operands).numpy())
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(*map(np.signbit, results))


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_and_in_place(dtype):
    base = npu(random((6, 8), 0), dtype, requires_grad=False)
    x, y = base.t(), npu(random((8, 6), 1), dtype, requires_grad=False)
    assert_rounded_once(x * y[::1], values(base).T * values(y), dtype)
    truth, address = values(y) + 0.5, y.data_ptr()
    y.add_(npu(0.5, dtype, requires_grad=False))
    assert y.data_ptr() == address
    assert_rounded_once(y, truth, dtype)


def test_operands_of_two_dtypes():
    x = npu(random((3, 4), 0), "float32", requires_grad=False)
    y = npu(random(4, 1), "bfloat16", requires_grad=False)
    assert_rounded_once(x * y, values(x) * values(y), "float32")


@pytest.mark.parametrize(
    ("factor", "bias", "bias_last"), [(0.125, 0.0, True), (3.0, -1.5, True), (3.0, 0.25, False)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale(dtype, factor, bias, bias_last):
    for shape in ((), (0,), (7,), (3, 20001)):
        x = npu(random(shape, 0), dtype)
        out = paddle.scale(x, factor, bias, bias_last)
        truth = factor * values(x) + (bias if bias_last else factor * bias)
        largest = np.abs(factor * values(x)) + np.abs(factor * bias) + np.abs(bias)
        bound = ROUNDING[dtype] * np.abs(truth) + 4 * ROUNDING["float32"] * largest + SUBNORMAL[dtype]
        assert out.dtype == x.dtype
        assert np.all(np.abs(values(out) - truth) <= bound)
        (gradient,) = paddle.grad([out], [x])
        np.testing.assert_array_equal(values(gradient), np.full(shape, factor))


SPECIAL = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, 65504.0, 65520.0, 3e38, 6e-8, 1e-40]
SPECIAL += [1 + 2**-9, 1 + 3 * 2**-9]  # halfway between two bfloat16


@pytest.mark.parametrize("target", [*DTYPES, "float64", "int32", "bool", "complex64"])
@pytest.mark.parametrize("source", DTYPES)
def test_cast_equals_the_cpu_place(source, target):
    finite = [value for value in SPECIAL if np.isfinite(value) and abs(value) < 1e6]
    numbers = finite if target == "int32" else SPECIAL
    results = []
    for place in ("npu:0", "cpu"):
        x = paddle.to_tensor(np.float32(numbers), place=place).astype(source)
        y = x.astype(target)
        assert str(y.dtype) == f"paddle.{target}"
        results.append((y.astype("float32") if target == "bfloat16" else y).numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_cast_in_place_and_of_nothing(source, target):
    x = npu(random((5, 1009), 0), source, requires_grad=False)
    truth = values(x.astype(target))
    np.testing.assert_array_equal(values(paddle.cast_(x, target)), truth)
    assert paddle.zeros([0, 3], source).astype(target).shape == [0, 3]


@pytest.mark.parametrize("count", [0, 1, 63, 64, 16384, 50001])
@pytest.mark.parametrize("dtype", DTYPES)
def test_squared_norm(dtype, count):
    x = npu(random(count, 0), dtype, requires_grad=False)
    out = paddle._C_ops.squared_l2_norm(x)
    truth = np.square(values(x)).sum()
    # 64 lanes sum a range of 16384 elements in float32: 256 additions and 6 between the lanes.
    bound = (ROUNDING[dtype] + 270 * ROUNDING["float32"]) * truth
    assert out.numel() == 1 and out.dtype == x.dtype
    assert abs(values(out).sum() - truth) <= bound


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_any_number_of_threads(dtype):
    x, y = (npu(random((67, 1003), seed), dtype, requires_grad=False) for seed in range(2))

    def compute():
        row = y[:, :1]
        norm = paddle._C_ops.squared_l2_norm(x)
        return [tensor.astype("float32") for tensor in (x + y, x * row, paddle.scale(x, 3.0), x, norm)]

    assert with_threads(1, compute) == with_threads(2, compute)
