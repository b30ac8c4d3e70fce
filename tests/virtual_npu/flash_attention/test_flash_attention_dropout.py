"""Dropout of ``flash_attention_npu``: one mask in both passes, its statistics, its seed."""

import attention_golden as golden
import numpy as np
import paddle
import pytest
from attention_golden import EPSILON, assert_close, composed
from flash_attention_program import DTYPES, device_tensor, flash_attention, numpy_of

pytestmark = pytest.mark.sampled


def dropout_factors(b, n, s, rate, seed_offset):
    """The factors [b, n, s, s]: with zero queries and one-hot values, out[i, j] = factor[i, j] / s."""
    zeros = paddle.zeros([b, s, n, s]).astype("float16")
    one_hot = paddle.eye(s).astype("float16").reshape([1, s, 1, s]).tile([b, 1, n, 1])
    out = flash_attention(zeros, zeros, one_hot, dropout=rate, seed_offset=seed_offset)[0]
    return np.round(numpy_of(out) * s * (1 - rate)).transpose(0, 2, 1, 3) / (1 - rate)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_uses_one_mask_in_both_passes(dtype, causal):
    b, n, s, rate = 2, 2, 128, 0.25
    seed_offset = paddle.to_tensor([1234567890123, 42], dtype="int64")
    factor = dropout_factors(b, n, s, rate, seed_offset)
    random = np.random.default_rng(3)
    tensors = [random.standard_normal((b, s, n, s)) for _ in range(4)]
    tensors = [numpy_of(device_tensor(x, dtype)).astype(np.float64) for x in tensors]
    exact = golden.attention(*tensors, None, 0 if causal else None, factor)
    *inputs, out_grad = (device_tensor(x, dtype) for x in tensors)
    for x in inputs:
        x.stop_gradient = False
    outs = flash_attention(*inputs, dropout=rate, causal=causal, seed_offset=seed_offset)
    assert [int(outs[4]), int(outs[5]), int(outs[6])] == [1234567890123, 42, b * n * s * s]
    results = [outs[0], *paddle.grad(outs[0], inputs, out_grad)]
    # Without dropout the same bounds hold for plain operators, so what they give is the measure of precision.
    hidden = np.triu(np.ones((s, s), bool), 1) & causal
    plain_out = composed(*inputs, paddle.to_tensor(hidden))
    plain = [plain_out, *paddle.grad(plain_out, inputs, out_grad)]
    without = golden.attention(*tensors, None, 0 if causal else None)
    for name, field in (("out", "out"), ("dq", "query_grad"), ("dk", "key_grad"), ("dv", "value_grad")):
        i = ("out", "dq", "dk", "dv").index(name)
        e, w = getattr(exact, field), getattr(without, field)
        assert_close(numpy_of(results[i]), e + (numpy_of(plain[i]) - w) / (1 - rate), e, dtype, name)


def test_dropout_mask_statistics():
    b, n, s, rate = 2, 3, 128, 0.3
    factor = dropout_factors(b, n, s, rate, paddle.to_tensor([7, 0], dtype="int64"))
    np.testing.assert_allclose(np.unique(factor), [0, 1 / (1 - rate)], rtol=1e-6)
    kept = factor > 0
    deviation = np.sqrt(rate * (1 - rate) / kept.size)
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation
    # Heads, entries of the batch, rows and neighbouring keys are independent of each other.
    pairs = [
        (kept[0], kept[1]),
        (kept[:, 0], kept[:, 1]),
        (kept[:, :, 1:], kept[:, :, :-1]),
        (kept[..., 1:], kept[..., :-1]),
    ]
    for x, y in pairs:
        correlation = np.corrcoef(x.ravel(), y.ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(x.size)
    for other in ([7, 1], [8, 0]):
        other_kept = dropout_factors(b, n, s, rate, paddle.to_tensor(other, dtype="int64")) > 0
        assert abs(np.corrcoef(kept.ravel(), other_kept.ravel())[0, 1]) < 5 / np.sqrt(kept.size)


def test_dropout_is_linear_in_value_and_backward_is_its_transpose():
    random = np.random.default_rng(4)
    dtype = "bfloat16"
    q, k, v, out_grad = (device_tensor(random.standard_normal((1, 96, 2, 32)), dtype) for _ in range(4))
    seed_offset = paddle.to_tensor([5, 6], dtype="int64")
    v.stop_gradient = False
    out, doubled = (flash_attention(q, k, x, dropout=0.5, seed_offset=seed_offset)[0] for x in (v, 2 * v))
    np.testing.assert_array_equal(numpy_of(doubled), 2 * numpy_of(out))
    (v_grad,) = paddle.grad(out, [v], out_grad)
    left, right = (
        numpy_of(a).astype(np.float64) * numpy_of(b) for a, b in ((out, out_grad), (v_grad, v.detach()))
    )
    # Each element of out and v_grad was rounded once; the signs of these errors are independent.
    bound = 5 * EPSILON[dtype] * np.sqrt((left**2).sum() + (right**2).sum())
    assert abs(left.sum() - right.sum()) < bound


def test_dropout_follows_paddle_seed_and_leaves_the_generator_alone_when_off():
    x = device_tensor(np.random.default_rng(5).standard_normal((1, 32, 2, 16)), "float16")
    paddle.seed(11)
    first = flash_attention(x, x, x, dropout=0.5)
    second = flash_attention(x, x, x, dropout=0.5)
    paddle.seed(11)
    flash_attention(x, x, x)
    flash_attention(x, x, x, dropout=0.5, is_test=True)
    again = flash_attention(x, x, x, dropout=0.5)
    np.testing.assert_array_equal(numpy_of(first[0]), numpy_of(again[0]))
    assert (int(first[4]), int(first[5])) == (int(again[4]), int(again[5]))
    assert (numpy_of(first[0]) != numpy_of(second[0])).any()


def test_dropout_is_off_in_test_mode_in_both_passes():
    random = np.random.default_rng(6)
    q, k, v, out_grad = (device_tensor(random.standard_normal((1, 40, 2, 16)), "bfloat16") for _ in range(4))
    q.stop_gradient = k.stop_gradient = v.stop_gradient = False
    results = []
    for rate in (0.0, 0.5):
        out = flash_attention(q, k, v, dropout=rate, is_test=True)[0]
        results.append([numpy_of(x) for x in (out, *paddle.grad(out, [q, k, v], out_grad))])
    for plain, dropped in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, dropped)
