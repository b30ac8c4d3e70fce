"""matmul in 16 bits on npu: products are summed in float32 and rounded once."""

import numpy as np
import paddle
import pytest
from instruction_sets import available

import virtual_npu

HALF_UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # relative error of rounding once, at most
LOW = tuple(HALF_UNIT)


pytestmark = [pytest.mark.usefixtures("on_npu"), pytest.mark.sampled]


def operand(seed, shape, dtype):
    """A tensor of `dtype` and the same values in float64."""
    tensor = paddle.to_tensor(np.random.RandomState(seed).randn(*shape).astype("float32")).astype(dtype)
    return tensor, tensor.astype("float32").numpy().astype("float64")


def assert_rounded_once(got, expected, magnitude, depth, slack=0.0):
    """`magnitude`: product of absolute values; a float32 sum of `depth` terms is off by depth/2^24 of it."""
    dtype = str(got.dtype).split(".")[-1]
    assert tuple(got.shape) == expected.shape
    values = got.astype("float32").numpy().astype("float64")
    subnormal = 2.0**-25 if dtype == "float16" else 0.0  # half of the distance between float16's subnormals
    bound = 1.001 * HALF_UNIT[dtype] * np.abs(expected) + depth * 2.0**-24 * magnitude + subnormal + slack
    assert np.all(np.abs(values - expected) <= bound)


CASES = [
    # x, y, transpose_x, transpose_y
    ((4, 5), (5, 6), False, False),
    ((5, 4), (5, 6), True, False),
    ((4, 5), (6, 5), False, True),
    ((5, 4), (6, 5), True, True),
    ((129, 65), (65, 33), False, False),
    ((3, 17, 31), (3, 31, 7), False, False),
    ((3, 31, 17), (3, 7, 31), True, True),
    ((2, 3, 9, 11), (2, 3, 13, 11), False, True),
    ((2, 1, 9, 11), (1, 3, 11, 5), False, False),
    ((9, 11), (4, 11, 5), False, False),
    ((4, 9, 11), (11, 5), False, False),
    ((257,), (257,), False, False),
    ((7, 257), (257,), False, False),
    ((257,), (257, 7), False, False),
    ((2, 5, 257), (257,), False, False),
    ((1, 1), (1, 1), False, False),
    # more than one block of the product's depth, rows and columns, none of them full
    ((67, 401), (401, 197), False, False),
    ((401, 67), (197, 401), True, True),
    ((67, 401), (197, 401), False, True),
    ((401, 67), (401, 197), True, False),
    ((1027, 5), (5, 771), False, False),
    ((3, 67, 150), (150, 9), False, False),
    ((3, 150, 67), (9, 150), True, True),
    ((9, 2, 6, 35), (2, 35, 6), False, False),
]


def numpy_matmul(x, y, transpose_x, transpose_y):
    x = np.swapaxes(x, -1, -2) if transpose_x and x.ndim > 1 else x
    y = np.swapaxes(y, -1, -2) if transpose_y and y.ndim > 1 else y
    return np.matmul(x, y)


def summed_to(gradient, shape):
    """The gradient of a broadcast operand: summed over the dimensions it was stretched along."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    stretched = tuple(i for i, size in enumerate(shape) if size == 1 and gradient.shape[i] != 1)
    return gradient.sum(axis=stretched, keepdims=True) if stretched else gradient


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward(case, dtype):
    x_shape, y_shape, *flags = case
    (x, x64), (y, y64) = operand(0, x_shape, dtype), operand(1, y_shape, dtype)
    got = paddle.matmul(x, y, *flags)
    assert str(got.dtype) == f"paddle.{dtype}"
    expected = numpy_matmul(x64, y64, *flags)
    depth = x_shape[-2] if flags[0] else x_shape[-1]
    assert_rounded_once(got, expected, numpy_matmul(np.abs(x64), np.abs(y64), *flags), depth)


def golden_gradients(x, y, dout, transpose_x, transpose_y):
    """dX and dY of the unbroadcast product, for operands of two dimensions or more."""
    x_, y_ = (np.swapaxes(x, -1, -2) if transpose_x else x), (np.swapaxes(y, -1, -2) if transpose_y else y)
    dx = np.matmul(dout, np.swapaxes(y_, -1, -2))
    dy = np.matmul(np.swapaxes(x_, -1, -2), dout)
    dx = np.swapaxes(dx, -1, -2) if transpose_x else dx
    dy = np.swapaxes(dy, -1, -2) if transpose_y else dy
    return summed_to(dx, x.shape), summed_to(dy, y.shape)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("case", [c for c in CASES if min(len(c[0]), len(c[1])) > 1], ids=str)
def test_gradients(case, dtype):
    x_shape, y_shape, *flags = case
    (x, x64), (y, y64) = operand(0, x_shape, dtype), operand(1, y_shape, dtype)
    x.stop_gradient = y.stop_gradient = False
    out = paddle.matmul(x, y, *flags)
    dout, dout64 = operand(2, out.shape, dtype)
    out.backward(dout)
    expected = golden_gradients(x64, y64, dout64, *flags)
    magnitudes = golden_gradients(np.abs(x64), np.abs(y64), np.abs(dout64), *flags)
    for tensor, value, magnitude in zip((x, y), expected, magnitudes, strict=True):
        depth = out.size // min(out.shape[-2:])  # no sum is longer
        assert_rounded_once(tensor.grad, value, magnitude, depth)


@pytest.mark.parametrize("dtype", LOW)
def test_gradients_of_vectors(dtype):
    (x, x64), (y, y64) = operand(0, (7, 257), dtype), operand(1, (257,), dtype)
    x.stop_gradient = y.stop_gradient = False
    out = paddle.matmul(x, y)
    dout, dout64 = operand(2, (7,), dtype)
    out.backward(dout)
    assert_rounded_once(x.grad, np.outer(dout64, y64), np.abs(np.outer(dout64, y64)), 1)
    assert_rounded_once(y.grad, dout64 @ x64, np.abs(dout64) @ np.abs(x64), 7)


@pytest.mark.parametrize("dtype", LOW)
def test_views_that_are_not_contiguous(dtype):
    (x, x64), (y, y64) = operand(0, (12, 20), dtype), operand(1, (20, 24), dtype)
    got = paddle.matmul(x.transpose([1, 0])[2:18:3], y.transpose([1, 0])[::2, 4:16])
    x64, y64 = x64.T[2:18:3], y64.T[::2, 4:16]
    assert_rounded_once(got, x64 @ y64, np.abs(x64) @ np.abs(y64), 12)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    "shapes", [((0, 5), (5, 3)), ((4, 5), (5, 0)), ((4, 0), (0, 3)), ((0, 4, 5), (0, 5, 3))], ids=str
)
def test_empty_operands(shapes, dtype):
    (x, x64), (y, y64) = operand(0, shapes[0], dtype), operand(1, shapes[1], dtype)
    got = paddle.matmul(x, y)
    np.testing.assert_array_equal(got.astype("float32").numpy(), x64 @ y64)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", ["bmm", "mm", "addmm", "linear", "linear with bias", "dot"])
def test_relatives_of_matmul(name, dtype):
    bias, bias64 = operand(3, (9,), dtype)
    batch = (2,) if name == "bmm" else ()
    (x, x64), (y, y64) = operand(0, (*batch, 5, 31), dtype), operand(1, (*batch, 31, 9), dtype)
    expected, magnitude, slack = x64 @ y64, np.abs(x64) @ np.abs(y64), 0.0
    if name == "dot":
        (x, x64), (y, y64) = operand(0, (5, 31), dtype), operand(1, (5, 31), dtype)
        got, expected, magnitude = paddle.dot(x, y), (x64 * y64).sum(-1), np.abs(x64 * y64).sum(-1)
    elif name == "addmm":
        got, expected = paddle.addmm(paddle.expand(bias, [5, 9]), x, y), expected + bias64
    elif name.startswith("linear"):
        with_bias = name.endswith("bias")
        got = paddle.nn.functional.linear(x, y, bias if with_bias else None)
        if with_bias:  # the product may be rounded before the bias is added
            slack = HALF_UNIT[dtype] * np.abs(expected)
            expected = expected + bias64
    else:
        got = getattr(paddle, name)(x, y)
    assert_rounded_once(got, expected, magnitude, 31, slack)


@pytest.mark.parametrize("dtype", LOW)
def test_sums_do_not_stall_in_16_bits(dtype):
    """Summing 4096 ones in 16 bits stops at 256 (bfloat16) or 2048 (float16)."""
    ones = paddle.ones([4096], dtype)
    assert float(paddle.matmul(ones, ones).astype("float32")) == 4096.0


@pytest.mark.parametrize("transpose_y", [False, True])
@pytest.mark.parametrize(("depth", "dtype"), [(2100, "bfloat16"), (2100, "float16"), (13000, "float16")])
def test_many_rows_have_the_bits_of_a_few(depth, dtype, transpose_y):
    """The packed part of y is reused for the following rows; in the deepest product some is packed again."""
    x, x64 = operand(0, (1200, depth), dtype)
    y, y64 = operand(1, (1100, depth) if transpose_y else (depth, 1100), dtype)
    y64 = y64.T if transpose_y else y64
    got = paddle.matmul(x, y, transpose_y=transpose_y)
    some = [0, 599, 1199]
    assert_rounded_once(got[some], x64[some] @ y64, np.abs(x64[some]) @ np.abs(y64), depth)
    for first in range(0, 1200, 300):
        few = paddle.matmul(x[first : first + 300], y, transpose_y=transpose_y)
        np.testing.assert_array_equal(got[first : first + 300].numpy(), few.numpy())


def test_float32_equals_the_cpu_place():
    x, y = (np.random.RandomState(i).randn(65, 65).astype("float32") for i in range(2))
    on_device = paddle.matmul(paddle.to_tensor(x), paddle.to_tensor(y)).numpy()
    on_cpu = paddle.matmul(paddle.to_tensor(x, place="cpu"), paddle.to_tensor(y, place="cpu")).numpy()
    np.testing.assert_array_equal(on_device, on_cpu)


@pytest.mark.parametrize("dtype", LOW)
def test_shapes_that_do_not_fit_are_refused(dtype):
    with pytest.raises(ValueError):
        paddle.matmul(paddle.ones([4, 5], dtype), paddle.ones([4, 5], dtype))


@pytest.mark.parametrize("dtype", LOW)
def test_gradients_of_vectors_against_a_batch(dtype):
    (x, x64), (y, y64) = operand(0, (31,), dtype), operand(1, (3, 31, 7), dtype)
    x.stop_gradient = y.stop_gradient = False
    out = paddle.matmul(x, y)
    dout, dout64 = operand(2, (3, 7), dtype)
    out.backward(dout)
    assert_rounded_once(out, x64 @ y64, np.abs(x64) @ np.abs(y64), 31)
    expected = golden_gradients(x64[None], y64, dout64[:, None], False, False)
    magnitudes = golden_gradients(np.abs(x64)[None], np.abs(y64), np.abs(dout64)[:, None], False, False)
    assert_rounded_once(x.grad, expected[0][0], magnitudes[0][0], 21)
    assert_rounded_once(y.grad, expected[1], magnitudes[1], 1)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    "shapes",
    [((4, 0), (0, 3)), ((0, 5), (5, 3)), ((4, 5), (5, 0)), ((0, 4, 5), (5, 3)), ((2, 4, 0), (0, 3))],
    ids=str,
)
def test_gradients_of_empty_operands(shapes, dtype):
    (x, _), (y, _) = operand(0, shapes[0], dtype), operand(1, shapes[1], dtype)
    x.stop_gradient = y.stop_gradient = False
    paddle.matmul(x, y).sum().backward()
    for tensor in (x, y):
        np.testing.assert_array_equal(
            tensor.grad.astype("float32").numpy(), np.zeros(tensor.shape, "float32")
        )


@pytest.mark.parametrize("dtype", LOW)
def test_one_gradient_only(dtype):
    (x, _), (y, y64) = operand(0, (2, 9, 11), dtype), operand(1, (11, 5), dtype)
    x.stop_gradient = False
    paddle.matmul(x, y).sum().backward()
    assert y.grad is None
    expected, magnitude = (np.broadcast_to(v.sum(1), (2, 9, 11)) for v in (y64, np.abs(y64)))
    assert_rounded_once(x.grad, expected, magnitude, 5)


@pytest.mark.parametrize("dtype", LOW)
def test_infinities_and_nan_stay_in_their_rows_and_columns(dtype):
    """The last block is partly filled in rows, columns and depth: its padding must not leak."""
    (x, x64), (y, y64) = operand(0, (69, 139), dtype), operand(1, (139, 205), dtype)
    for tensor, values, at, value in (
        (x, x64, (68, 138), np.inf),
        (x, x64, (3, 0), np.nan),
        (y, y64, (138, 204), -np.inf),
        (y, y64, (7, 100), np.nan),
    ):
        tensor[at] = float(value)
        values[at] = value
    got = paddle.matmul(x, y).astype("float32").numpy()
    with np.errstate(invalid="ignore"):
        expected = x64 @ y64
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(np.isinf(got), infinite)
    np.testing.assert_array_equal(got[infinite], expected[infinite])


@pytest.mark.parametrize("dtype", LOW)
def test_the_kernels_are_npu_kernels(dtype):
    (x, _), (y, _) = operand(0, (4, 5), dtype), operand(1, (5, 3), dtype)
    x.stop_gradient = y.stop_gradient = False
    virtual_npu.reset_kernel_record()
    paddle.matmul(x, y).backward()
    record = {(row.name, row.dtype): (row.placement, row.calls) for row in virtual_npu.kernel_record()}
    assert record["matmul", dtype] == record["matmul_grad", dtype] == ("npu", 1)


@pytest.mark.parametrize("dtype", LOW)
def test_to_static(dtype):
    (x, _), (y, _) = operand(0, (3, 17, 31), dtype), operand(1, (31, 7), dtype)

    @paddle.jit.to_static(full_graph=True)
    def product(x, y):
        return paddle.matmul(x, y)

    np.testing.assert_array_equal(product(x, y).numpy(), paddle.matmul(x, y).numpy())


PRODUCTS = [  # x, y: one large product, many small ones, a broadcast one
    ((3, 113, 301), (301, 405)),
    ((24, 19, 33), (24, 33, 21)),
    ((5, 70, 140), (1, 140, 200)),
]
PROGRAM = f"""
import sys
import numpy as np
import paddle

paddle.set_device("npu")
results = {{}}
for threads in (1, 2):
    paddle.base.core.set_num_threads(threads)
    for number, shapes in enumerate({PRODUCTS}):
        for dtype in {LOW}:
            arrays = (np.random.RandomState(i).randn(*shape) for i, shape in enumerate(shapes))
            x, y = (paddle.to_tensor(array.astype("float32")).astype(dtype) for array in arrays)
            x.stop_gradient = y.stop_gradient = False
            out = paddle.matmul(x, y)
            out.backward(out.detach())
            for name, tensor in dict(out=out, dx=x.grad, dy=y.grad).items():
                results[f"{{name}} {{number}} {{dtype}} {{threads}}"] = tensor.astype("float32").numpy()
np.savez(sys.argv[1], **results)
"""


@pytest.mark.slow
def test_instruction_sets_and_threads(run_python, tmp_path):
    """Bit for bit the same on one and on two threads, and on all instruction sets with fused multiply-add.

    The baseline rounds every product as well: there the last bit of the float32 sum may differ.
    """
    program = tmp_path / "products.py"
    program.write_text(PROGRAM)
    fused = None
    for isa in available():
        file = tmp_path / f"{isa}.npz"
        done = run_python("-m", "virtual_npu", program, file, PADDLE_FUSED_ISA=isa, OMP_NUM_THREADS="2")
        assert done.returncode == 0, done.stderr[-2000:]
        results = np.load(file)
        for name in results:
            if name.endswith(" 1"):
                np.testing.assert_array_equal(
                    results[name[:-1] + "2"], results[name], err_msg=f"{isa} {name}"
                )
        for number, shapes in enumerate(PRODUCTS):
            for dtype in LOW:
                (_, x64), (_, y64) = operand(0, shapes[0], dtype), operand(1, shapes[1], dtype)
                out = paddle.to_tensor(results[f"out {number} {dtype} 1"]).astype(dtype)
                assert_rounded_once(out, x64 @ y64, np.abs(x64) @ np.abs(y64), shapes[0][-1])
        if isa == "baseline":
            continue
        for name in fused or ():
            if isa in ("avx512_bf16", "amx") and "bfloat16" in name:  # they sum in another order
                continue
            np.testing.assert_array_equal(results[name], fused[name], err_msg=f"{isa} {name}")
        fused = results
