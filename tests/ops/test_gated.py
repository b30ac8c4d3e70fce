"""Gated activations beyond the cases of tests/ops/test_operator_cases.py: views, bad input, dim."""

import numpy as np
import paddle
import pytest

from paddle_fused import dispatch_log, geglu, swiglu, use_backend
from paddle_fused.compat import npu_geglu, npu_swiglu

pytestmark = pytest.mark.usefixtures("on_cpu")


def gradients(outputs, inputs):
    return paddle.grad([(outputs * outputs).sum()], inputs)


def random(*shape):
    tensor = paddle.to_tensor(np.random.default_rng(0).standard_normal(shape).astype("float32"))
    tensor.stop_gradient = False
    return tensor


def test_both_forms_are_the_same_bit_for_bit():
    x = random(5, 4100)
    with use_backend("native", strict=True):
        packed, other = swiglu(x), swiglu(x[:, :2050], x[:, 2050:])
        (actual,), (right,) = gradients(packed, [x]), gradients(other, [x])
    np.testing.assert_array_equal(packed.numpy(), other.numpy())
    np.testing.assert_array_equal(actual.numpy(), right.numpy())


@pytest.mark.sampled
@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0,), (2, 0, 4)])
def test_no_elements(shape):
    x = random(*shape)
    out = swiglu(x)
    assert list(out.shape) == [*shape[:-1], shape[-1] // 2]
    assert gradients(out, [x])[0].shape == list(shape)
    assert swiglu(x, x).shape == list(shape)


def test_a_scalar_has_no_halves_but_a_product():
    x = random()
    np.testing.assert_allclose(float(swiglu(x, x)), float(paddle.nn.functional.silu(x) * x), rtol=1e-6)
    with pytest.raises(ValueError, match=r"swiglu.*x.*\[\]"):
        swiglu(x)


@pytest.mark.sampled
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e30, -1e30])
def test_extreme_gates(value):
    x = paddle.to_tensor([value, 1.0])
    up = paddle.to_tensor([2.0, 2.0])
    # silu(-inf) is -inf * 0: NaN in the formula, in numpy and here.
    with np.errstate(all="ignore"):
        wide = x.numpy().astype(np.float64)
        expected = (wide / (1 + np.exp(-wide)) * 2).astype(np.float32)
    np.testing.assert_allclose(swiglu(x, up).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize(("dtype", "largest"), [("float32", 3e38), ("bfloat16", 3e38), ("float16", 6e4)])
def test_huge_gates_of_geglu_pass_or_do_not(dtype, largest, approximate):
    """No square and no cube of them makes inf * 0."""
    x = paddle.to_tensor([100.0, largest**0.5, largest, -100.0, -(largest**0.5), -largest]).astype(dtype)
    up = paddle.full([6], 0.5, dtype)
    x.stop_gradient = up.stop_gradient = False
    with use_backend("native", strict=True):
        out = geglu(x, up, approximate)
        dx, dup = paddle.grad([out.astype("float32").sum()], [x, up])
    passes = np.array([1, 1, 1, 0, 0, 0], "float32")
    wide = x.astype("float32").numpy()
    for actual, expected in ((out, wide * passes / 2), (dx, passes / 2), (dup, wide * passes)):
        np.testing.assert_array_equal(actual.astype("float32").numpy(), expected)


@pytest.mark.sampled
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_torch_npu_s_function_halves_any_dimension(dim):
    x = random(2, 4, 16)
    a, b = paddle.split(x, 2, dim)
    expected = paddle.nn.functional.silu(a) * b
    np.testing.assert_allclose(npu_swiglu(x, dim).numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.sampled
@pytest.mark.parametrize("activate_left", [False, True])
@pytest.mark.parametrize("approximate", [0, 1])
@pytest.mark.parametrize("dim", [0, -1])
def test_torch_npu_s_geglu_activates_the_half_that_is_asked_for(dim, approximate, activate_left):
    x = random(4, 16)
    left, right = paddle.split(x, 2, dim)
    gate, up = (left, right) if activate_left else (right, left)
    gelu = paddle.nn.functional.gelu(gate, approximate=bool(approximate))
    out, activated = npu_geglu(x, dim, approximate, activate_left)
    np.testing.assert_allclose(out.numpy(), (gelu * up).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(activated.numpy(), gelu.numpy(), rtol=1e-5, atol=1e-6)
    assert not out.stop_gradient and activated.stop_gradient


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["npu_swiglu", "npu_geglu"])
def test_a_captured_program_may_have_unknown_sizes(device, name, dim):
    def call(x):
        out = {"npu_swiglu": npu_swiglu, "npu_geglu": npu_geglu}[name](x, dim)
        return out if name == "npu_swiglu" else out[0]

    def program(x):
        return call(x)

    spec = [paddle.static.InputSpec([None, None], "float32", stop_gradient=False)]
    captured = paddle.jit.to_static(program, input_spec=spec, full_graph=True)
    x = random(4, 64)
    np.testing.assert_array_equal(captured(x).numpy(), call(x).numpy())
    assert gradients(captured(x), [x])[0].shape == [4, 64]
    with pytest.raises(ValueError):
        captured(random(3, 63))


def bad_inputs():
    x = random(4, 8)
    return {
        "no tensor": (lambda: swiglu(3.0), "swiglu.*x.*float"),
        "integers": (lambda: swiglu(x.astype("int32")), "x.*int32.*float32"),
        "y of another device": (lambda: swiglu(x, x.to("npu:0")), "x.*cpu.*y.*npu:0"),
        "y of another rank": (lambda: swiglu(x, x[0]), r"x.*\[4, 8\].*y.*\[8\]"),
    }


@pytest.mark.sampled
@pytest.mark.parametrize("case", list(bad_inputs()))
def test_bad_input(case):
    call, message = bad_inputs()[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_the_host_operators_check_their_memory():
    x = random(4, 8)
    swiglu(x)  # loads the operators
    for name, arguments, message in (
        ("pf_swiglu", (x, x[:2]), r"gate.*\[4, 8\].*up.*\[2, 8\]"),
        ("pf_swiglu", (x, x.astype("float16")), "up.*float16.*gate.*float32"),
        ("pf_swiglu", (x, x.to("npu:0")), "up.*npu:0"),
        ("pf_swiglu_halves", (x[:, :7],), "even"),
        ("pf_swiglu_halves", (x.astype("float64"),), "x.*float64"),
    ):
        with pytest.raises(ValueError, match=f"{name}: .*{message}"):
            paddle._C_ops._run_custom_op(name, *arguments)


def test_modes_on_npu_say_what_a_card_does():
    paddle.set_device("npu:0")
    x = random(4, 64)
    swiglu(x)
    swiglu(x, x)
    modes = [ran.mode for ran in dispatch_log() if ran.operator == "swiglu" and ran.backend == "ascend"]
    assert any("aclnnSwiGlu on a card" in mode for mode in modes)
    assert any("joins x and y" in mode for mode in modes)
