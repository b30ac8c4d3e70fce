"""fused_rope: query * cos + rotate_half(query) * sin; rotate_half(a, b) = (-b, a) on the two halves."""

import custom_operator
import numpy as np
import paddle
import pytest
from precision import DTYPES, assert_as_accurate_as_composed, assert_is_gradient, npu, values, with_threads

pytestmark = pytest.mark.sampled

# [batch, seq_len, num_heads, head_dim]
SHAPES = [(1, 64, 2, 64), (2, 7, 3, 128), (3, 1, 1, 192), (1, 129, 5, 64)]


def rotate_half(x):
    half = x.shape[-1] // 2
    joined = np.concatenate if isinstance(x, np.ndarray) else paddle.concat
    return joined((-x[..., half:], x[..., :half]), -1)


def rotated(x, cos, sin):
    return x * cos + rotate_half(x) * sin


def truth_gradient(dy, cos, sin):
    return dy * cos - rotate_half(dy * sin)


def inputs(shape, dtype, seed=0):
    random = np.random.default_rng(seed)
    angles = (1, shape[1], 1, shape[3])  # the two halves differ, so that mixing them up shows
    return (
        npu(random.standard_normal(shape), dtype),
        npu(random.uniform(-1, 1, angles), dtype, requires_grad=False),
        npu(random.uniform(-1, 1, angles), dtype, requires_grad=False),
        npu(random.standard_normal(shape), dtype, requires_grad=False),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_gradient(shape, dtype):
    query, cos, sin, dy = inputs(shape, dtype)
    (out,) = custom_operator.run("fused_rope", query, cos, sin)
    composed = rotated(query, cos, sin)
    query64, cos64, sin64, dy64 = map(values, (query, cos, sin, dy))
    assert out.dtype == query.dtype
    assert_as_accurate_as_composed(out, composed, rotated(query64, cos64, sin64), "query_out")
    true_dquery = truth_gradient(dy64, cos64, sin64)
    assert_is_gradient(lambda q: (rotated(q, cos64, sin64) * dy64).sum(), [query64], [true_dquery])
    (dquery,) = paddle.grad([out], [query], [dy])
    (composed_dquery,) = paddle.grad([composed], [query], [dy])
    assert_as_accurate_as_composed(dquery, composed_dquery, true_dquery, "gradient of query")


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_for_any_number_of_threads(dtype):
    query, cos, sin, dy = inputs((2, 200, 3, 64), dtype)

    def compute():
        (out,) = custom_operator.run("fused_rope", query, cos, sin)
        return [out, *paddle.grad([out], [query], [dy])]

    assert with_threads(1, compute) == with_threads(2, compute)


def test_input_that_is_not_contiguous():
    query, cos, sin, _ = inputs((2, 6, 4, 64), "float32")
    view = query.transpose([0, 2, 1, 3])  # [2, 4, 6, 64]: read as four positions of six heads
    assert not view.is_contiguous()
    angles = cos[:, ::2][:, :2].tile([1, 2, 1, 1]), sin[:, :4]
    (out,) = custom_operator.run("fused_rope", view, *angles)
    (dense,) = custom_operator.run("fused_rope", *(tensor.contiguous() for tensor in (view, *angles)))
    np.testing.assert_array_equal(out.numpy(), dense.numpy())


@pytest.mark.parametrize("shape", [(0, 4, 2, 64), (2, 0, 2, 64), (2, 4, 0, 64)])
def test_no_elements(shape):
    query, cos, sin, dy = inputs(shape, "float16")
    (out,) = custom_operator.run("fused_rope", query, cos, sin)
    assert out.shape == list(shape)
    assert paddle.grad([out], [query], [dy])[0].shape == list(shape)


def test_static_program():
    query, cos, sin, _ = inputs((2, 6, 2, 64), "float32")

    @paddle.jit.to_static(full_graph=True)
    def program(query, cos, sin):
        return custom_operator.run_any_mode("fused_rope", query, cos, sin)[0]

    out = program(query, cos, sin)
    out.square().sum().backward()
    static = [out.numpy(), query.grad.numpy()]
    query.clear_grad()
    (out,) = custom_operator.run("fused_rope", query, cos, sin)
    out.square().sum().backward()
    for got, expected in zip(static, [out.numpy(), query.grad.numpy()], strict=True):
        np.testing.assert_array_equal(got, expected)


def bad_inputs():
    query, cos, sin, _ = inputs((2, 8, 4, 64), "float32")
    narrow = npu(np.ones((1, 8, 1, 32)), "float32")
    wide = npu(np.ones((1, 1, 1, 896)), "float32")
    return {
        "cos on the CPU": (
            (query, cos.cpu(), sin),
            r"query is on npu:0, cos is on cpu, sin is on npu:0.*Move them",
        ),
        "all on the CPU": (
            (query.cpu(), cos.cpu(), sin.cpu()),
            r"query is on cpu.*accepted: all on one npu device",
        ),
        "float64": (
            tuple(t.astype("float64") for t in (query, cos, sin)),
            r"query is float64; accepted: .*161002",
        ),
        "mixed dtypes": (
            (query, cos.astype("bfloat16"), sin),
            r"cos is bfloat16 and query is float32.*161002",
        ),
        "rank 3": ((query[0], cos, sin), r"query has shape \[8, 4, 64\]; accepted: rank 4.*561002"),
        "head_dim 32": ((query[..., :32], narrow, narrow), r"head_dim is 32; accepted: .*multiple of 64\."),
        "head_dim 896": (
            (wide, wide, wide),
            r"head_dim is 896; accepted: an even head size below 896.*561002",
        ),
        "too many heads": ((npu(np.ones((1, 8, 1000, 64)), "float32"), cos, sin), r"1000 heads.*561002"),
        "another seq_len": ((query, cos[:, :5], sin[:, :5]), r"cos has shape \[1, 5, 1, 64\].*561002"),
        "cos unlike sin": (
            (query, cos, sin[:, :5]),
            r"cos has shape \[1, 8, 1, 64\] and sin \[1, 5, 1, 64\]; accepted: cos and sin",
        ),
        "angles per batch": (
            (query, cos.tile([2, 1, 1, 1]), sin.tile([2, 1, 1, 1])),
            r"\[2, 8, 1, 64\]; accepted: .*\[1, S, 1, D\]",
        ),
        "angles of rank 2": ((query, cos[0, :, 0], sin[0, :, 0]), r"cos has shape \[8, 64\].*\[1, S, 1, D\]"),
    }


@pytest.mark.parametrize("case", list(bad_inputs()))
def test_bad_input(case):
    arguments, message = bad_inputs()[case]
    with pytest.raises(ValueError, match=rf"(?s)fused_rope: .*{message}"):
        custom_operator.run("fused_rope", *arguments)
