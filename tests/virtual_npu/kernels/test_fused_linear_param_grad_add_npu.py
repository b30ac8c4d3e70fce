"""fused_linear_param_grad_add: gradients of a linear layer's parameters, added up over micro-batches.

Shapes by suffix letters: M rows, K inputs of the layer, N outputs.
"""

import numpy as np
import paddle
import pytest
from precision import DTYPES, ROUNDING, npu, values

import virtual_npu

pytestmark = pytest.mark.sampled

SHAPES = [((6,), 5, 7), ((3, 4), 32, 17), ((1,), 1, 1), ((2, 3, 5), 9, 130)]


def add_gradients(x, dout, dweight=None, dbias=None, multi_precision=True, has_bias=True):
    return paddle._C_ops.fused_linear_param_grad_add(x, dout, dweight, dbias, multi_precision, has_bias)


def result_dtype(dtype, multi_precision):
    return "float32" if multi_precision else dtype


def assert_summed_in_float32(got, truth, magnitude, depth):
    """`depth` terms, absolute values adding up to `magnitude`, are summed in float32 and rounded once."""
    dtype = str(got.dtype).removeprefix("paddle.")
    assert tuple(got.shape) == truth.shape
    subnormal = 2.0**-25 if dtype == "float16" else 0.0
    bound = 1.001 * ROUNDING[dtype] * np.abs(truth) + depth * ROUNDING["float32"] * magnitude + subnormal
    assert np.all(np.abs(values(got) - truth) <= bound)


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("multi_precision", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("leading", "k", "n"), SHAPES)
def test_gradients(leading, k, n, dtype, multi_precision, earlier):
    random = np.random.default_rng(0)
    x = npu(random.standard_normal((*leading, k)), dtype, requires_grad=False)
    dout = npu(random.standard_normal((*leading, n)), dtype, requires_grad=False)
    kept = result_dtype(dtype, multi_precision)
    dweight = npu(random.standard_normal((k, n)), kept, requires_grad=False) if earlier else None
    dbias = npu(random.standard_normal(n), kept, requires_grad=False) if earlier else None
    weight64 = values(dweight) if earlier else np.zeros((k, n))
    bias64 = values(dbias) if earlier else np.zeros(n)
    x64, dout64 = values(x).reshape(-1, k), values(dout).reshape(-1, n)

    weight_sum, bias_sum = add_gradients(x, dout, dweight, dbias, multi_precision)

    assert weight_sum.dtype == bias_sum.dtype == getattr(paddle, kept)
    depth = len(x64) + 1
    magnitude = np.abs(x64).T @ np.abs(dout64) + np.abs(weight64)
    assert_summed_in_float32(weight_sum, x64.T @ dout64 + weight64, magnitude, depth)
    magnitude = np.abs(dout64).sum(0) + np.abs(bias64)
    assert_summed_in_float32(bias_sum, dout64.sum(0) + bias64, magnitude, depth)


@pytest.mark.parametrize("multi_precision", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dweight_is_updated_in_place(dtype, multi_precision):
    x, dout = npu(np.ones((2, 3)), dtype), npu(np.ones((2, 4)), dtype)
    dweight = npu(np.full((3, 4), 5.0), result_dtype(dtype, multi_precision), requires_grad=False)
    address = dweight.data_ptr()
    total, _ = add_gradients(x, dout, dweight, multi_precision=multi_precision, has_bias=False)
    assert total.data_ptr() == dweight.data_ptr() == address
    np.testing.assert_array_equal(values(dweight), np.full((3, 4), 7.0))


def test_no_rows_leave_the_sums_as_they_are():
    dweight = npu(np.full((3, 4), 5.0), "float32", requires_grad=False)
    total, bias_sum = add_gradients(paddle.zeros([0, 3]), paddle.zeros([0, 4]), dweight)
    np.testing.assert_array_equal(total.numpy(), np.full((3, 4), 5.0, np.float32))
    np.testing.assert_array_equal(bias_sum.numpy(), np.zeros(4, np.float32))


def test_float64():
    random = np.random.default_rng(0)
    place = paddle.CustomPlace("npu", 0)
    x, dout = random.standard_normal((6, 5)), random.standard_normal((6, 7))
    total, _ = add_gradients(paddle.to_tensor(x, place=place), paddle.to_tensor(dout, place=place))
    bound = 7 * ROUNDING["float64"] * (np.abs(x).T @ np.abs(dout))
    assert np.all(np.abs(total.numpy() - x.T @ dout) <= bound)


@pytest.mark.parametrize(("multi_precision", "wrong"), [(True, "bfloat16"), (False, "float32")])
@pytest.mark.parametrize("which", ["dweight", "dbias"])
def test_sums_of_another_dtype_are_refused(which, multi_precision, wrong):
    x, dout = npu(np.ones((2, 3)), "bfloat16"), npu(np.ones((2, 4)), "bfloat16")
    sums = {which: paddle.zeros([3, 4] if which == "dweight" else [4], wrong)}
    message = f"{which} is {wrong}; with multi_precision {multi_precision} it must be"
    with pytest.raises(ValueError, match=message):
        add_gradients(x, dout, **sums, multi_precision=multi_precision)


def test_it_is_one_kernel_in_the_record():
    x, dout = npu(np.ones((2, 3)), "bfloat16"), npu(np.ones((2, 4)), "bfloat16")
    virtual_npu.reset_kernel_record()
    add_gradients(x, dout)
    (ran,) = virtual_npu.kernel_record()
    assert (ran.name, ran.dtype) == ("fused_linear_param_grad_add", "bfloat16")
    assert (ran.placement, ran.calls) == ("npu", 1)
