"""rms_norm_npu: y = x * rstd * gamma with rstd = 1 / sqrt(mean(x^2) + epsilon) over gamma's dimensions."""

import custom_operator
import numpy as np
import paddle
import pytest
from precision import DTYPES, assert_as_accurate_as_composed, assert_is_gradient, npu, values, with_threads

pytestmark = pytest.mark.sampled

EPSILON = 1e-6
# (x, gamma): odd widths, ranks 1 to 4, more than one normalised dimension, a long row, width 1
SHAPES = [
    ((10, 128), (128,)),
    ((7, 1), (1,)),
    ((3, 5, 17), (17,)),
    ((2, 3, 5, 7), (5, 7)),
    ((33,), (33,)),
    ((70, 513), (513,)),
    ((3, 8192), (8192,)),
]


def truth(x, gamma):
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    rstd = 1 / np.sqrt((x * x).mean(axes, keepdims=True) + EPSILON)
    return x * rstd * gamma, rstd


def truth_gradients(x, gamma, dy):
    axes = tuple(range(x.ndim - gamma.ndim, x.ndim))
    rstd = truth(x, gamma)[1]
    normal = x * rstd
    dx = (dy * gamma - normal * (dy * gamma * normal).mean(axes, keepdims=True)) * rstd
    return dx, (dy * normal).sum(tuple(range(x.ndim - gamma.ndim)))


def composed(x, gamma):
    axes = list(range(len(x.shape) - len(gamma.shape), len(x.shape)))
    x32 = x.astype("float32")
    rstd = paddle.rsqrt(x32.square().mean(axes, keepdim=True) + EPSILON)
    return (x32 * rstd).astype(x.dtype) * gamma, rstd


def inputs(x_shape, gamma_shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    return (
        npu(random.standard_normal(x_shape), dtype),
        npu(1 + 0.2 * random.standard_normal(gamma_shape), dtype),
        npu(random.standard_normal(x_shape), dtype, requires_grad=False),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("x_shape", "gamma_shape"), SHAPES)
def test_forward_and_gradients(x_shape, gamma_shape, dtype):
    x, gamma, dy = inputs(x_shape, gamma_shape, dtype)
    y, rstd = custom_operator.run("rms_norm_npu", x, gamma, EPSILON)
    expected_y, expected_rstd = composed(x, gamma)
    x64, gamma64, dy64 = values(x), values(gamma), values(dy)
    true_y, true_rstd = truth(x64, gamma64)
    assert y.dtype == x.dtype
    assert rstd.dtype == paddle.float32
    assert rstd.shape == list(true_rstd.shape)
    assert_as_accurate_as_composed(y, expected_y, true_y, "y")
    assert_as_accurate_as_composed(rstd, expected_rstd, true_rstd, "rstd")

    dx, dgamma = paddle.grad([y], [x, gamma], [dy])
    expected_dx, expected_dgamma = paddle.grad([expected_y], [x, gamma], [dy])
    true_dx, true_dgamma = truth_gradients(x64, gamma64, dy64)
    assert_is_gradient(lambda a, b: (truth(a, b)[0] * dy64).sum(), [x64, gamma64], [true_dx, true_dgamma])
    assert dgamma.dtype == paddle.float32
    assert_as_accurate_as_composed(dx, expected_dx, true_dx, "dx")
    assert_as_accurate_as_composed(dgamma, expected_dgamma, true_dgamma, "dgamma")


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_any_number_of_threads(dtype):
    x, gamma, dy = inputs((1000, 257), (257,), dtype)

    def compute():
        y, rstd = custom_operator.run("rms_norm_npu", x, gamma, EPSILON)
        return [y, rstd, *paddle.grad([y], [x, gamma], [dy])]

    assert with_threads(1, compute) == with_threads(2, compute)


def test_input_that_is_not_contiguous():
    x, gamma, dy = inputs((17, 9), (17,), "float32")
    view = x.t()
    assert not view.is_contiguous()
    y = custom_operator.run("rms_norm_npu", view, gamma, EPSILON)[0]
    dense = custom_operator.run("rms_norm_npu", view.contiguous(), gamma, EPSILON)[0]
    np.testing.assert_array_equal(y.numpy(), dense.numpy())
    gradients = [paddle.grad([out], [x, gamma], [dy.t()])[0].numpy() for out in (y, dense)]
    np.testing.assert_array_equal(*gradients)


def test_no_rows():
    x, gamma, dy = inputs((0, 8), (8,), "bfloat16")
    y, rstd = custom_operator.run("rms_norm_npu", x, gamma, EPSILON)
    assert (y.shape, rstd.shape) == ([0, 8], [0, 1])
    dx, dgamma = paddle.grad([y], [x, gamma], [dy])
    assert dx.shape == [0, 8]
    np.testing.assert_array_equal(dgamma.numpy(), np.zeros(8, np.float32))


def test_static_program():
    x, gamma, _ = inputs((6, 40), (40,), "float32")

    @paddle.jit.to_static(full_graph=True)
    def program(x, gamma):
        return custom_operator.run_any_mode("rms_norm_npu", x, gamma, EPSILON)[0]

    y = program(x, gamma)
    y.sum().backward()
    static = [y.numpy(), x.grad.numpy(), gamma.grad.numpy()]
    x.clear_grad()
    gamma.clear_grad()
    y = custom_operator.run("rms_norm_npu", x, gamma, EPSILON)[0]
    y.sum().backward()
    for got, expected in zip(static, [y.numpy(), x.grad.numpy(), gamma.grad.numpy()], strict=True):
        np.testing.assert_array_equal(got, expected)


def test_loss_of_rstd_alone_is_refused():
    x, gamma, _ = inputs((4, 8), (8,), "float32")
    rstd = custom_operator.run("rms_norm_npu", x, gamma, EPSILON)[1]
    with pytest.raises(ValueError, match="only y has a gradient"):
        rstd.sum().backward()


def test_infinity_stays_in_its_row():
    x = npu(np.array([[np.inf, 1.0], [3.0, 4.0]]), "float32")
    y = custom_operator.run("rms_norm_npu", x, npu(np.ones(2), "float32"), EPSILON)[0].numpy()
    np.testing.assert_array_equal(y[0], [np.nan, 0.0])
    assert np.isfinite(y[1]).all()


def bad_inputs():
    x, gamma = npu(np.ones((4, 8)), "float32"), npu(np.ones(8), "float32")
    return {
        "x on the CPU": ((x.cpu(), gamma, EPSILON), r"x is on cpu, gamma is on npu:0.*Move them"),
        "all on the CPU": ((x.cpu(), gamma.cpu(), EPSILON), r"x is on cpu, gamma is on cpu.*npu device"),
        "two devices": ((x, gamma.to("npu:1"), EPSILON), r"x is on npu:0, gamma is on npu:1.*one npu device"),
        "float64": (
            (x.astype("float64"), gamma.astype("float64"), EPSILON),
            r"x is float64; accepted: .*161002",
        ),
        "integers": (
            (x.astype("int32"), gamma, EPSILON),
            r"x is int32; accepted: float32, bfloat16 or float16.*161002",
        ),
        "mixed dtypes": (
            (x.astype("bfloat16"), gamma, EPSILON),
            r"gamma is float32 and x is bfloat16.*161002",
        ),
        "gamma too short": ((x, gamma[:4], EPSILON), r"x has shape \[4, 8\] and gamma \[4\].*561002"),
        "gamma of higher rank": ((gamma, x, EPSILON), r"x has shape \[8\] and gamma \[4, 8\].*561002"),
        "empty gamma": ((x[:, :0], gamma[:0], EPSILON), r"gamma \[0\].*561002"),
        "rank 9": ((npu(np.ones([1] * 8 + [8]), "float32"), gamma, EPSILON), r"rank 1 to 8.*561002"),
        "negative epsilon": ((x, gamma, -1.0), r"epsilon is -1.*161002"),
    }


@pytest.mark.parametrize("case", list(bad_inputs()))
def test_bad_input(case):
    arguments, message = bad_inputs()[case]
    with pytest.raises(ValueError, match=rf"(?s)rms_norm_npu: .*{message}"):
        custom_operator.run("rms_norm_npu", *arguments)
