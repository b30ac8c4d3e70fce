"""Dropout and return values of dropout_add_layer_norm and dropout_add_rms_norm."""

import numpy as np
import paddle
import pytest
from instruction_sets import available, narrowest_by_default
from norm_calls import EPSILON, INPUTS, call, gradients, place_of, tensors
from precision import values

import paddle_fused
from paddle_fused import BackendError, compat, use_backend
from paddle_fused.ops.dropout_add_norm.cases import golden

NORMS = ("dropout_add_layer_norm", "dropout_add_rms_norm")
WHERE = [("native", "cpu"), ("native", "npu"), ("composed", "cpu"), ("composed", "npu"), ("ascend", "npu")]
every_norm = pytest.mark.parametrize("norm", NORMS)
everywhere = pytest.mark.parametrize(("backend", "place"), WHERE)


def mask_of(norm, shape, dropout, place="cpu", seed=None, **options):
    """The mask of a call with inputs of ones."""
    paddle.set_device("npu:0" if place == "npu" else "cpu")
    if seed is not None:
        paddle.seed(seed)
    x0 = paddle.ones(shape)
    _, mask = getattr(paddle_fused, norm)(
        x0, None, paddle.ones([shape[-1]]), None, dropout, EPSILON, return_dropout_mask=True, **options
    )
    assert mask.dtype == paddle.bool
    assert mask.shape == shape
    return mask.numpy()


@pytest.mark.sampled
@everywhere
@every_norm
@pytest.mark.parametrize("dropout", [0.1, 0.5, 0.9])
def test_statistics_of_the_mask(norm, backend, place, dropout):
    with use_backend(backend, strict=True):
        kept = mask_of(norm, [64, 3, 257], dropout, place, seed=3)

    def assert_binomial(sample, probability):
        deviation = np.sqrt(probability * (1 - probability) / sample.size)
        assert abs(sample.mean() - probability) < 5 * deviation

    assert_binomial(kept, 1 - dropout)
    # Rows, columns and neighbours are independent of each other.
    for first_keep, other in [
        (kept[1:], kept[:-1]),
        (kept[:, 1:], kept[:, :-1]),
        (kept[..., 1:], kept[..., :-1]),
        (kept[..., 4:], kept[..., :-4]),
    ]:
        assert_binomial(first_keep & other, (1 - dropout) ** 2)


@pytest.mark.sampled
@everywhere
@every_norm
def test_the_mask_follows_from_the_seed(norm, backend, place):
    with use_backend(backend, strict=True):
        first = mask_of(norm, [8, 33], 0.5, place, seed=11)
        second = mask_of(norm, [8, 33], 0.5, place)
        again = mask_of(norm, [8, 33], 0.5, place, seed=11)
        other = mask_of(norm, [8, 33], 0.5, place, seed=12)
    np.testing.assert_array_equal(first, again)
    assert (first != second).any()
    assert (first != other).any()


@pytest.mark.sampled
@everywhere
@every_norm
def test_nothing_is_dropped_at_0_nor_outside_of_training_and_everything_at_1(norm, backend, place):
    with use_backend(backend, strict=True):
        assert mask_of(norm, [4, 9], 0.0, place).all()
        assert mask_of(norm, [4, 9], 0.7, place, training=False).all()
        assert not mask_of(norm, [4, 9], 1.0, place).any()


@pytest.mark.sampled
@everywhere
@every_norm
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_mask_in_both_passes(norm, backend, place, dtype):
    """Outputs and gradients equal those of a call without dropout on x0 times the mask."""
    t = tensors(norm, (6, 5, 41), dtype, place)
    is_rms, dropout = norm == "dropout_add_rms_norm", 0.3
    operator = getattr(paddle_fused, norm)
    arguments = [
        t["x"],
        t["residual"],
        t["weight"],
        t["bias"],
        dropout,
        EPSILON,
        t["rowscale"],
        t["layerscale"],
    ]
    paddle.seed(5)
    try:
        with use_backend(backend, strict=True):
            out, pre, mask = operator(*arguments, prenorm=True, return_dropout_mask=True)
    except BackendError as refused:
        pytest.fail(str(refused))
    gradients_of_norm = gradients([out, pre], t)
    factors = mask.numpy() / (1 - dropout)

    exact = {name: paddle.to_tensor(values(tensor), place=place_of("cpu")) for name, tensor in t.items()}
    for tensor in exact.values():
        tensor.stop_gradient = False
    dropped = {**exact, "x": exact["x"] * paddle.to_tensor(factors, place=place_of("cpu"))}
    truth = call(norm, dropped)
    expected = gradients(truth, exact)
    arrays = {"x0": values(t["x"]), **{name: values(t[name]) for name in t if name != "x"}}
    for computed, right in zip(truth, golden(arrays, is_rms, factors), strict=True):
        np.testing.assert_allclose(computed.numpy(), right, rtol=1e-9, atol=1e-9)
    # Some roundings of values about as large as the largest.
    rounding = {"float32": 2.0**-24, "bfloat16": 2.0**-8}[dtype]
    for name, got, right in zip(
        ("out", "pre", *INPUTS[norm]), (out, pre, *gradients_of_norm), (*truth, *expected), strict=True
    ):
        error = np.abs(values(got) - right.numpy()).max()
        assert error <= 24 * rounding * np.abs(right.numpy()).max(), name


@pytest.mark.sampled
@every_norm
def test_recomputation_finds_the_same_mask(norm):
    from paddle.distributed.fleet.utils import recompute

    paddle.set_device("cpu")
    t = tensors(norm, (4, 40))

    def gradient_of_x(function):
        paddle.seed(9)
        out, pre = function()
        return gradients([out, pre], {"x": t["x"]})[0].numpy()

    with use_backend("native", strict=True):
        plain = gradient_of_x(lambda: call(norm, t, 0.5))
        recomputed = gradient_of_x(
            lambda: recompute(lambda x: tuple(call(norm, {**t, "x": x}, 0.5)), t["x"], use_reentrant=False)
        )
    np.testing.assert_array_equal(plain, recomputed)


@pytest.mark.sampled
@every_norm
def test_every_run_of_a_captured_program_draws_a_new_mask(norm):
    paddle.set_device("cpu")
    operator = getattr(paddle_fused, norm)

    @paddle.jit.to_static(full_graph=True)
    def program(x0, weight):
        return operator(x0, None, weight, None, 0.5, EPSILON, return_dropout_mask=True)[1]

    with use_backend("native", strict=True):
        x0, weight = paddle.ones([8, 64]), paddle.ones([64])
        paddle.seed(2)
        first, second = program(x0, weight).numpy(), program(x0, weight).numpy()
        paddle.seed(2)
        again = program(x0, weight).numpy()
    assert (first != second).any()
    np.testing.assert_array_equal(first, again)


@pytest.mark.sampled
@everywhere
@every_norm
def test_what_is_returned(norm, backend, place):
    t = tensors(norm, (4, 8), "bfloat16", place)
    operator, compatible = getattr(paddle_fused, norm), getattr(compat, f"npu_{norm}")
    required = (t["x"], t["residual"], t["weight"], None, 0.0, EPSILON)
    with use_backend(backend, strict=True):
        for function in (operator, compatible):
            out = function(*required)
            assert isinstance(out, paddle.Tensor)
            pair = function(*required, prenorm=True)
            masked = function(*required, return_dropout_mask=True)
            all_three = function(*required, None, None, True, False, True)
            assert [len(results) for results in (pair, masked, all_three)] == [2, 2, 3]
            assert [tensor.dtype for tensor in all_three] == [paddle.bfloat16, paddle.bfloat16, paddle.bool]
            for results in (pair, masked, all_three):
                np.testing.assert_array_equal(values(results[0]), values(out))
            np.testing.assert_array_equal(all_three[1].astype("float32").numpy(), values(pair[1]))
            assert all_three[2].numpy().all()
            assert masked[1].dtype == paddle.bool


@pytest.mark.sampled
@everywhere
@every_norm
def test_dtype_of_what_precedes_the_norm(norm, backend, place):
    t = tensors(norm, (4, 8), "float16", place)

    def dtype_of_pre(residual, in_fp32):
        rest = (t["weight"], None, 0.0, EPSILON, None, None, True, in_fp32)
        out, pre = getattr(paddle_fused, norm)(t["x"], residual, *rest)
        assert out.dtype == paddle.float16
        return pre.dtype

    with use_backend(backend, strict=True):
        assert dtype_of_pre(t["residual"], False) == paddle.float16
        assert dtype_of_pre(t["residual"], True) == paddle.float32
        assert dtype_of_pre(t["residual"].astype("float32"), False) == paddle.float32
        assert dtype_of_pre(None, False) == paddle.float16
        assert dtype_of_pre(None, True) == paddle.float16


@pytest.mark.sampled
@every_norm
def test_a_dropped_infinity_is_not_a_number(norm):
    paddle.set_device("cpu")
    x0, weight = paddle.full([2, 8], float("inf")), paddle.ones([8])
    for backend in ("native", "composed"):
        with use_backend(backend, strict=True):
            pre = getattr(paddle_fused, norm)(x0, None, weight, None, 1.0, EPSILON, prenorm=True)[1]
        assert np.isnan(pre.numpy()).all()


@pytest.mark.slow
@pytest.mark.parametrize("isa", narrowest_by_default(available()))
def test_the_mask_is_one_on_every_instruction_set(run_python, isa):
    program = (
        "import numpy, paddle, paddle_fused; paddle.set_device('cpu'); paddle.seed(4)\n"
        "x0, weight = paddle.ones([5, 77]), paddle.ones([77])\n"
        "call = paddle_fused.dropout_add_rms_norm\n"
        "mask = call(x0, None, weight, None, 0.4, 1e-5, return_dropout_mask=True)[1]\n"
        "print(numpy.packbits(mask.numpy()).tobytes().hex())\n"
    )
    result = run_python("-c", program, PADDLE_FUSED_ISA=isa)
    assert result.returncode == 0, result.stderr[-3000:]
    with use_backend("native", strict=True):
        mask = mask_of("dropout_add_rms_norm", [5, 77], 0.4, seed=4)
    assert result.stdout.strip() == np.packbits(mask).tobytes().hex()
