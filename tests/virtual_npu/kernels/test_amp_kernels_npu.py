"""check_finite_and_unscale: a loss scaler divides gradients and finds an Inf or NaN among them."""

import numpy as np
import paddle
import pytest
from precision import DTYPES, ROUNDING, npu, values

pytestmark = pytest.mark.sampled

SIZES = (1, 7, 1000, 40001)  # one thread's share is 16384 elements


def unscale(gradients, scale):
    """The operator: (outputs, found_infinite)."""
    outputs, found_inf = paddle._C_ops.check_finite_and_unscale_(
        gradients, npu(np.array([scale]), "float32", requires_grad=False)
    )
    return outputs, bool(found_inf.numpy()[0])


def gradients_of(dtype, seed=0):
    random = np.random.default_rng(seed)
    return [npu(random.standard_normal(size), dtype, requires_grad=False) for size in SIZES]


@pytest.mark.parametrize("scale", [65536.0, 3.0, 0.7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_quotients(dtype, scale):
    gradients = gradients_of(dtype)
    truths = [values(gradient) / float(np.float32(scale)) for gradient in gradients]
    outputs, found_inf = unscale(gradients, scale)
    assert not found_inf
    for output, truth in zip(outputs, truths, strict=True):
        # Reciprocal and product are rounded to float32, the result to its type, which may be subnormal.
        bound = (ROUNDING[dtype] + 3 * ROUNDING["float32"]) * np.abs(truth)
        assert np.all(np.abs(values(output) - truth) <= bound + (2.0**-25 if dtype == "float16" else 0))


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_inf_or_nan_anywhere_is_found_and_the_rest_divided(dtype, special):
    for where, size in enumerate(SIZES):
        for position in {0, size // 2, size - 1}:
            gradients = [npu(np.ones(n), dtype, requires_grad=False) for n in SIZES]
            expected = [np.full(n, 0.25) for n in SIZES]
            gradients[where][position] = special
            expected[where][position] = special
            outputs, found_inf = unscale(gradients, 4.0)
            assert found_inf
            for output, value in zip(outputs, expected, strict=True):
                np.testing.assert_array_equal(values(output), value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_number_is_finite_and_nothing_is_too(dtype):
    largest = {"float32": 2.0**127, "bfloat16": 2.0**127, "float16": 65504.0}[dtype]
    outputs, found_inf = unscale([npu(np.full(9, largest), dtype), paddle.zeros([0], dtype)], 1.0)
    assert not found_inf
    np.testing.assert_array_equal(values(outputs[0]), np.full(9, largest))
    assert outputs[1].shape == [0]


def test_works_in_place():
    gradient = npu(np.ones(5), "float16", requires_grad=False)
    address = gradient.data_ptr()
    (output,), _ = unscale([gradient], 2.0)
    assert output.data_ptr() == address
    np.testing.assert_array_equal(values(gradient), np.full(5, 0.5))


def test_float16_subnormals_survive_where_paddle_flushes_subnormal_floats():
    """Calls of old operators, as GradScaler makes them, have the processor take subnormal floats for zero."""
    every = np.arange(1, 1024, dtype=np.uint16).view(np.float16)
    gradient = paddle.to_tensor(np.tile(every, 3), place=paddle.CustomPlace("npu", 0))
    found_inf = paddle.zeros([1], "bool")
    paddle._legacy_C_ops.check_finite_and_unscale([gradient], paddle.ones([1]), [gradient], found_inf)
    assert not found_inf.numpy()[0]
    np.testing.assert_array_equal(gradient.numpy(), np.tile(every, 3))


def test_loss_scaler_skips_a_step_with_an_inf():
    weight = paddle.create_parameter([4], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
    optimizer = paddle.optimizer.SGD(0.5, parameters=[weight])
    scaler = paddle.amp.GradScaler(init_loss_scaling=8.0, decr_every_n_nan_or_inf=1)
    for factor, expected in ((np.inf, 1.0), (1.0, 0.5)):
        with paddle.amp.auto_cast(dtype="float16"):  # else Paddle switches the scaler off
            loss = scaler.scale((weight * factor).sum())
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        np.testing.assert_array_equal(weight.numpy(), np.full(4, expected, np.float32))
