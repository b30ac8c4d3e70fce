"""``flash_attention_npu`` against the float64 golden: shapes, masks, varlen, layouts, static graphs."""

from dataclasses import dataclass

import attention_golden as golden
import numpy as np
import paddle
import pytest
from attention_golden import assert_close, composed
from flash_attention_program import DTYPES, device_tensor, flash_attention, numpy_of
from peak_memory import grown_by

import virtual_npu

pytestmark = pytest.mark.sampled


@dataclass
class Dense:
    """A call with [B, S, N, D] tensors. ``mask`` names the mask's shape."""

    b: int
    sq: int
    skv: int
    nq: int
    nkv: int
    d: int
    mask: str = ""
    causal: bool = False
    triangle: bool = False
    hidden_rows: bool = False

    def arrays(self, dtype, seed=0):
        random = np.random.default_rng(seed)
        shapes = [(self.b, self.sq, self.nq, self.d), *[(self.b, self.skv, self.nkv, self.d)] * 2]
        tensors = [random.standard_normal(s) for s in (*shapes, shapes[0])]
        tensors = [numpy_of(device_tensor(x, dtype)).astype(np.float64) for x in tensors]
        hidden = None
        if self.mask:
            shape = {
                "BNSS": (self.b, self.nq, self.sq, self.skv),
                "B1SS": (self.b, 1, self.sq, self.skv),
                "11SS": (1, 1, self.sq, self.skv),
                "SS": (self.sq, self.skv),
            }[self.mask]
            hidden = random.random(shape) < 0.4
            hidden[..., 0] = False
            if self.hidden_rows:
                hidden[..., self.sq // 2 :: 3, :] = True
        return tensors, hidden

    def check(self, dtype):
        tensors, hidden = self.arrays(dtype)
        next_tokens = 0 if self.causal or self.triangle else None
        exact = golden.attention(*tensors, None if self.causal else hidden, next_tokens)
        *inputs, out_grad = (device_tensor(x, dtype) for x in tensors)
        for x in inputs:
            x.stop_gradient = False
        mask = None if hidden is None else paddle.to_tensor(hidden)
        outs = flash_attention(*inputs, mask=mask, causal=self.causal, triangle=self.triangle)
        results = [outs[0], *paddle.grad(outs[0], inputs, out_grad)]
        all_hidden = np.zeros((self.sq, self.skv), bool) if hidden is None or self.causal else hidden
        if next_tokens is not None:
            all_hidden = all_hidden | (np.arange(self.skv)[None] > np.arange(self.sq)[:, None])
        plain_out = composed(*inputs, paddle.to_tensor(all_hidden))
        plain = [plain_out, *paddle.grad(plain_out, inputs, out_grad)]
        exacts = (exact.out, exact.query_grad, exact.key_grad, exact.value_grad)
        for name, a, p, e in zip(("out", "dq", "dk", "dv"), results, plain, exacts, strict=True):
            assert a.dtype == inputs[0].dtype
            assert_close(numpy_of(a), numpy_of(p), e, dtype, name)
        visible_rows = exact.softmax_max != 0  # rows with hidden keys only have no maximum worth comparing
        for name, a, e in (("max", outs[1], exact.softmax_max), ("sum", outs[2], exact.softmax_sum)):
            a = a.numpy()
            assert a.shape == (*e.shape, 8) and a.dtype == np.float32
            assert (a == a[..., :1]).all()
            np.testing.assert_allclose(
                a[..., 0][visible_rows], e[visible_rows], rtol=1e-5, atol=1e-5, err_msg=name
            )


DENSE = {
    "square": Dense(2, 128, 128, 2, 2, 64),
    "one query": Dense(2, 1, 129, 4, 2, 64),
    "tails": Dense(1, 65, 67, 2, 2, 37),
    "more keys": Dense(1, 33, 190, 2, 1, 32, "SS"),
    "more queries": Dense(1, 190, 33, 2, 1, 32, "SS"),
    "head size 1": Dense(1, 70, 70, 2, 2, 1, "11SS"),
    "head size 3": Dense(1, 9, 9, 1, 1, 3, "SS"),
    "head size 80": Dense(1, 70, 70, 2, 1, 80, causal=True),
    "head size 512": Dense(1, 66, 66, 2, 1, 512, causal=True),
    "GQA 8 over 2, causal": Dense(2, 100, 100, 8, 2, 16, causal=True),
    "multi-query": Dense(1, 70, 70, 6, 1, 24, "B1SS"),
    "causal overrides the mask": Dense(1, 80, 80, 2, 2, 16, "SS", causal=True),
    "mask BNSS": Dense(2, 70, 90, 4, 2, 16, "BNSS"),
    "mask B1SS": Dense(2, 70, 90, 4, 2, 16, "B1SS"),
    "mask 11SS": Dense(2, 70, 90, 4, 2, 16, "11SS"),
    "mask and triangle": Dense(1, 130, 130, 2, 2, 16, "SS", triangle=True),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DENSE)
def test_forward_and_gradients(name, dtype):
    DENSE[name].check(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_with_hidden_keys_only_are_their_average(dtype):
    Dense(2, 100, 150, 2, 1, 16, "B1SS", hidden_rows=True).check(dtype)


def test_a_nan_stays_in_its_row():
    values = np.random.default_rng(10).standard_normal((1, 70, 1, 16))
    query = values.copy()
    query[0, 5, 0, 3] = np.nan
    x = device_tensor(values, "bfloat16")
    out = numpy_of(flash_attention(device_tensor(query, "bfloat16"), x, x, causal=True)[0])
    assert np.isnan(out[0, 5]).all() and np.isfinite(np.delete(out, 5, axis=1)).all()


def test_golden_gradient_is_the_derivative():
    random = np.random.default_rng(1)
    shapes = [(1, 5, 4, 3), (1, 6, 2, 3), (1, 6, 2, 3)]
    tensors, directions = ([random.standard_normal(s) for s in shapes] for _ in range(2))
    out_grad = random.standard_normal(shapes[0])
    hidden = random.random((5, 6)) < 0.3
    factor = random.integers(0, 2, (1, 4, 5, 6)) * 2.0
    step = 1e-5

    def loss(t):
        moved = [x + t * d for x, d in zip(tensors, directions, strict=True)]
        return (golden.attention(*moved, out_grad, hidden, None, factor).out * out_grad).sum()

    r = golden.attention(*tensors, out_grad, hidden, None, factor)
    slope = sum(
        (g * d).sum() for g, d in zip((r.query_grad, r.key_grad, r.value_grad), directions, strict=True)
    )
    assert abs((loss(step) - loss(-step)) / (2 * step) - slope) < 1e-7 * max(1, abs(slope))


# ---- sequences of different lengths --


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "query_ends, key_ends, kind",
    [
        ([70, 75, 175], [70, 75, 175], "causal"),
        ([3, 3, 70, 71], [5, 5, 100, 120], "plain"),  # a sequence of length zero
        ([4, 4, 10], [4, 9, 15], "plain"),  # one with keys only
        ([2, 66, 70, 0, 0], [2, 66, 70, 0, 0], "causal"),  # unused places at the end
        ([40, 100], [70, 150], "mask"),
    ],
)
def test_varlen(query_ends, key_ends, kind, dtype):
    nq, nkv, d = 4, 2, 24
    used_q, used_k = ([e for i, e in enumerate(ends) if e > 0 or i == 0] for ends in (query_ends, key_ends))
    random = np.random.default_rng(2)
    shapes = [(used_q[-1], nq, d), *[(used_k[-1], nkv, d)] * 2, (used_q[-1], nq, d)]
    tensors = [numpy_of(device_tensor(random.standard_normal(s), dtype)).astype(np.float64) for s in shapes]
    longest = [np.diff([0, *ends]).max() for ends in (used_q, used_k)]
    hidden = random.random(longest) < 0.4 if kind == "mask" else None
    if kind == "mask":
        hidden[:, 0] = False
    exact = golden.attention_varlen(*tensors, used_q, used_k, hidden, 0 if kind == "causal" else None)
    *inputs, out_grad = (device_tensor(x, dtype) for x in tensors)
    for x in inputs:
        x.stop_gradient = False
    ends = [paddle.to_tensor(e, dtype="int32") for e in (query_ends, key_ends)]
    mask = None if hidden is None else paddle.to_tensor(hidden)
    outs = flash_attention(*inputs, mask=mask, ends=ends, causal=kind == "causal")
    results = [outs[0], *paddle.grad(outs[0], inputs, out_grad)]

    plain = [np.zeros(np.shape(x)) for x in (exact.out, exact.query_grad, exact.key_grad, exact.value_grad)]
    for q0, q1, k0, k1 in zip([0, *used_q], used_q, [0, *used_k], used_k, strict=False):
        if q1 == q0:
            continue
        part = [x.detach().unsqueeze(0) for x in (inputs[0][q0:q1], inputs[1][k0:k1], inputs[2][k0:k1])]
        for x in part:
            x.stop_gradient = False
        part_hidden = np.zeros((q1 - q0, k1 - k0), bool)
        if kind == "mask":
            part_hidden = hidden[: q1 - q0, : k1 - k0]
        if kind == "causal":
            part_hidden = np.arange(k1 - k0)[None] > np.arange(q1 - q0)[:, None]
        out = composed(*part, paddle.to_tensor(part_hidden))
        grads = paddle.grad(out, part, out_grad[q0:q1].unsqueeze(0))
        places = (slice(q0, q1), slice(q0, q1), slice(k0, k1), slice(k0, k1))
        for whole, place, x in zip(plain, places, (out, *grads), strict=True):
            whole[place] = numpy_of(x)[0]
    exacts = (exact.out, exact.query_grad, exact.key_grad, exact.value_grad)
    for name, a, p, e in zip(("out", "dq", "dk", "dv"), results, plain, exacts, strict=True):
        assert_close(numpy_of(a), p, e, dtype, name)
    assert outs[1].shape == [used_q[-1], nq, 8]
    np.testing.assert_allclose(outs[2].numpy()[..., 0], exact.softmax_sum, rtol=1e-5)
    segments = zip(np.diff([0, *used_q]), np.diff([0, *used_k]), strict=True)
    assert int(outs[6]) == nq * sum(int(a) * int(b) for a, b in segments)


# ---- memory layouts and ways to call --


def test_strided_views_are_accepted():
    random = np.random.default_rng(7)
    packed = device_tensor(random.standard_normal((2, 3, 40, 4, 16)), "bfloat16")  # q, k and v in one tensor
    views = [packed[:, i] for i in range(3)]
    other = [x.transpose([0, 2, 1, 3]).contiguous().transpose([0, 2, 1, 3]) for x in views]
    dense = [device_tensor(numpy_of(x), "bfloat16") for x in views]
    last = [
        device_tensor(numpy_of(x).transpose(0, 3, 1, 2), "bfloat16").transpose([0, 2, 3, 1]) for x in views
    ]
    hidden = paddle.to_tensor(random.random((40, 40)) < 0.3)
    transposed = paddle.to_tensor(hidden.numpy().T.copy()).transpose([1, 0])
    assert not other[0].is_contiguous() and not last[0].is_contiguous() and not transposed.is_contiguous()
    expected = None
    for inputs, mask in ((dense, hidden), (views, hidden), (other, transposed), (last, transposed)):
        inputs = [x.detach() for x in inputs]
        for x in inputs:
            x.stop_gradient = False
        out = flash_attention(*inputs, mask=mask)[0]
        out_grad = out.transpose([0, 2, 1, 3]).contiguous().transpose([0, 2, 1, 3])
        result = [numpy_of(x) for x in (out, *paddle.grad(out, inputs, out_grad))]
        expected = expected or result
        for a, e in zip(result, expected, strict=True):
            np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("shape", [(0, 8, 2, 16), (2, 0, 2, 16)])
def test_zero_sizes(shape):
    x = paddle.zeros(shape).astype("bfloat16")
    x.stop_gradient = False
    outs = flash_attention(x, x, x, causal=True)
    (grad,) = paddle.grad(outs[0], [x], paddle.zeros(shape).astype("bfloat16"))
    assert outs[0].shape == list(shape) == grad.shape


def test_keys_without_queries_get_zero_gradients():
    q = paddle.zeros([2, 0, 2, 16]).astype("bfloat16")
    k, v = (paddle.ones([2, 5, 2, 16]).astype("bfloat16") for _ in range(2))
    q.stop_gradient = k.stop_gradient = v.stop_gradient = False
    out = flash_attention(q, k, v)[0]
    for grad in paddle.grad(out, [k, v], paddle.zeros_like(out)):
        assert grad.shape == [2, 5, 2, 16] and (numpy_of(grad) == 0).all()


def test_to_static_equals_dygraph():
    def attend(q, k, v):
        return paddle._C_ops._run_custom_op(
            "flash_attention_npu", q, k, v, None, None, None, None, 0.0, True, True, False, False, False
        )

    random = np.random.default_rng(8)
    q, k, v = (
        device_tensor(random.standard_normal(s), "bfloat16") for s in ((2, 20, 4, 16), *[(2, 20, 2, 16)] * 2)
    )
    q.stop_gradient = k.stop_gradient = v.stop_gradient = False
    static = paddle.jit.to_static(attend, full_graph=True)
    results = []
    for function in (attend, static):
        outs = function(q, k, v)
        results.append([numpy_of(x) for x in (*outs[:3], *paddle.grad(outs[0], [q, k, v], outs[0].detach()))])
    for a, e in zip(results[1], results[0], strict=True):
        np.testing.assert_array_equal(a, e)


def test_static_graphs_know_shapes_and_dtypes():
    paddle.enable_static()
    try:
        with paddle.static.program_guard(paddle.static.Program()):
            query = paddle.static.data("query", [-1, 20, 4, 16], "bfloat16")
            key = paddle.static.data("key", [-1, 30, 2, 16], "bfloat16")
            flags = (0.0, True, True, False, False, False)
            outs = paddle._C_ops._run_custom_op("flash_attention_npu", query, key, key, *[None] * 4, *flags)
            shapes_and_dtypes = [(list(x.shape), x.dtype) for x in outs]
    finally:
        paddle.disable_static()
    statistics = ([-1, 4, 20, 8], paddle.float32)
    scalars = [([1], paddle.bfloat16), *[([1], paddle.int64)] * 3]
    assert shapes_and_dtypes == [([-1, 20, 4, 16], paddle.bfloat16), statistics, statistics, *scalars]


def test_calls_are_recorded_as_work_of_the_npu():
    x = device_tensor(np.ones((1, 4, 1, 8)), "float16")
    x.stop_gradient = False
    virtual_npu.reset_kernel_record()
    paddle.grad(flash_attention(x, x, x)[0], [x])
    calls = {(r.name, r.dtype): (r.placement, r.calls) for r in virtual_npu.kernel_record()}
    assert calls["flash_attention_npu", "float16"] == ("npu", 1)
    assert calls["flash_attention_npu_grad", "float16"] == ("npu", 1)


def test_memory_does_not_grow_with_the_square_of_the_sequence():
    s = 8192
    x = device_tensor(np.random.default_rng(9).standard_normal((1, s, 1, 8)), "bfloat16")
    x.stop_gradient = False
    grown = grown_by(lambda: paddle.grad(flash_attention(x, x, x, causal=True)[0], [x], x.detach()))
    assert grown < s * s / 2  # an S x S mask of bytes would be twice as much
