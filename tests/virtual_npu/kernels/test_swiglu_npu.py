"""swiglu(x, y) = silu(x) * y; without y, of x's two halves along the last dimension."""

import re

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from precision import DTYPES, assert_as_accurate_as_composed, assert_is_gradient, npu, values, with_threads

from paddle_fused.paddle_release import swiglu

pytestmark = pytest.mark.sampled

# of the result: odd widths, rank 1, rows shorter and longer than a piece of the kernel's work
SHAPES = [(20, 256), (1,), (7, 1), (3, 5, 17), (2, 2049), (5, 4099)]


def truth(gate, up):
    return gate / (1 + np.exp(-gate)) * up


def truth_gradients(gate, up, dy):
    s = 1 / (1 + np.exp(-gate))
    return dy * up * s * (1 + gate * (1 - s)), dy * gate * s


def inputs(shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    return (
        npu(3 * random.standard_normal(shape), dtype),
        npu(random.standard_normal(shape), dtype),
        npu(random.standard_normal(shape), dtype, requires_grad=False),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_two_tensors(shape, dtype):
    gate, up, dy = inputs(shape, dtype)
    out = swiglu(gate, up)
    composed = F.silu(gate) * up
    gate64, up64, dy64 = map(values, (gate, up, dy))
    assert out.dtype == gate.dtype
    assert_as_accurate_as_composed(out, composed, truth(gate64, up64), "out")
    gradients = paddle.grad([out], [gate, up], [dy])
    noise_floors = paddle.grad([composed], [gate, up], [dy])
    true_gradients = truth_gradients(gate64, up64, dy64)
    assert_is_gradient(lambda a, b: (truth(a, b) * dy64).sum(), [gate64, up64], true_gradients)
    for name, got, noise_floor, expected in zip(
        ("dx", "dy"), gradients, noise_floors, true_gradients, strict=True
    ):
        assert_as_accurate_as_composed(got, noise_floor, expected, name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_two_halves_equal_two_tensors(shape, dtype):
    gate, up, dy = inputs(shape, dtype)
    joined = paddle.concat([gate, up], -1).detach()
    joined.stop_gradient = False
    out, expected = swiglu(joined), swiglu(gate, up)
    np.testing.assert_array_equal(values(out), values(expected))
    (gradient,) = paddle.grad([out], [joined], [dy])
    expected_gradient = paddle.concat(paddle.grad([expected], [gate, up], [dy]), -1)
    np.testing.assert_array_equal(values(gradient), values(expected_gradient))


@pytest.mark.parametrize("wanted", [0, 1])
def test_gradient_of_one_tensor_only(wanted):
    tensors = inputs((4, 33), "float32")
    both = paddle.grad([swiglu(*tensors[:2])], list(tensors[:2]), [tensors[2]])
    tensors[1 - wanted].stop_gradient = True
    (gradient,) = paddle.grad([swiglu(*tensors[:2])], [tensors[wanted]], [tensors[2]])
    np.testing.assert_array_equal(gradient.numpy(), both[wanted].numpy())


def test_extreme_values():
    gate = npu([-np.inf, -1e4, -100.0, -0.0, 0.0, 100.0, 1e4, np.inf, np.nan], "float32")
    out = swiglu(gate, paddle.ones_like(gate))
    # silu(-inf) is -inf / inf, as in the composed form
    np.testing.assert_allclose(out.numpy(), [np.nan, 0, 0, 0, 0, 100, 1e4, np.inf, np.nan], atol=1e-30)
    (gradient,) = paddle.grad([out], [gate])
    np.testing.assert_allclose(gradient.numpy()[1:7], [0, 0, 0.5, 0.5, 1, 1], atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_any_number_of_threads(dtype):
    gate, up, dy = inputs((64, 1025), dtype)

    def compute():
        out = swiglu(gate, up)
        return [out, *paddle.grad([out], [gate, up], [dy])]

    assert with_threads(1, compute) == with_threads(2, compute)


def test_input_that_is_not_contiguous():
    gate, up, _ = inputs((6, 10), "float32")
    out = swiglu(gate.t(), up.t())
    np.testing.assert_array_equal(out.numpy(), swiglu(gate, up).numpy().T)


@pytest.mark.parametrize("shape", [(0, 8), (4, 0)])
def test_no_elements(shape):
    gate, up, dy = inputs(shape, "bfloat16")
    out = swiglu(gate, up)
    assert out.shape == list(shape)
    assert [g.shape for g in paddle.grad([out], [gate, up], [dy])] == [list(shape)] * 2


def test_static_program():
    gate, up, _ = inputs((5, 12), "float32")

    @paddle.jit.to_static(full_graph=True)
    def program(gate, up):
        return swiglu(gate, up)

    np.testing.assert_array_equal(program(gate, up).numpy(), swiglu(gate, up).numpy())


@pytest.mark.parametrize(
    ("shapes", "message"), [([(4, 5)], "divided by 2"), ([(4, 6), (4, 3)], r"\[4, 3\]|same shape|equal")]
)
def test_bad_shapes(shapes, message):
    with pytest.raises(ValueError, match=message):
        swiglu(*(npu(np.ones(shape), "float32") for shape in shapes))


WIDTHS = """
    import sys, paddle
    from paddle_fused.paddle_release import swiglu
    paddle.set_device("npu:0")
    for width in (16, 6):
        x = paddle.to_tensor([[1.0] * width] * 2, stop_gradient=False)
        (gradient,) = paddle.grad(swiglu(x), x)
        print(list(gradient.shape))
"""


@pytest.mark.slow
@pytest.mark.parametrize("strict", ["0", "1"])
def test_the_card_wants_aligned_rows_for_the_gradient(strict, run_program):
    done = run_program(WIDTHS, VIRTUAL_NPU_STRICT=strict)
    if strict == "0":
        assert done.stdout.splitlines() == ["[2, 16]", "[2, 6]"], done.stderr
        return
    assert (done.returncode, done.stdout) == (1, "[2, 16]\n")
    message = "swiglu_grad: rows of x have 24 bytes; accepted: .*a multiple of 64 bytes"
    assert re.search(message, done.stderr), done.stderr
