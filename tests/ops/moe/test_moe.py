"""The mixture-of-experts operators beyond their cases: documents, properties, wrong arguments."""

import re

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paddle_fused import (
    grouped_matmul,
    moe_token_permute,
    moe_token_unpermute,
    native,
    paddle_release,
    use_backend,
)
from paddle_fused.ops.grouped_matmul.op import grouped_matmul_dweight

pytestmark = pytest.mark.sampled


@pytest.fixture(params=["cpu", "npu:0"])
def device(request):
    paddle.set_device(request.param)
    return request.param


def _everywhere(device):
    return ("native", "composed", *(("ascend",) if device.startswith("npu") else ()))


def test_the_example_of_torch_npu_s_document(device):
    tokens = paddle.to_tensor([[1.0, 1], [2, 2], [3, 3], [4, 4]])
    indices = paddle.to_tensor([[0, 1], [1, 0], [0, 2], [2, 0]], dtype="int32")
    for backend in _everywhere(device):
        with use_backend(backend, strict=True):
            permuted, sorted_indices = moe_token_permute(tokens, indices)
            assert permuted[:, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
            assert sorted_indices.tolist() == [0, 4, 5, 1, 2, 6, 7, 3]
            assert sorted_indices.dtype == paddle.int32
            assert moe_token_permute(tokens, indices, 4)[0][:, 0].tolist() == [1, 2, 3, 4]
            halves = paddle.full([4, 2], 0.5)
            assert moe_token_unpermute(permuted, sorted_indices, halves).tolist() == tokens.tolist()
            straight = paddle.arange(4, dtype="int32")
            assert moe_token_unpermute(tokens, straight).tolist() == tokens.tolist()


@given(
    tokens=st.integers(0, 30),
    top_k=st.integers(1, 6),
    experts=st.sampled_from([1, 2, 17, 4095, 4096, 4097, 16777215]),
    rows=st.one_of(st.none(), st.integers(-200, 200)),
    dtype=st.sampled_from(["int32", "int64"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_places_are_those_of_a_stable_sort_and_rows_those_of_a_slice(
    tokens, top_k, experts, rows, dtype, seed
):
    paddle.set_device("cpu")
    random = np.random.default_rng(seed)
    indices = random.integers(0, experts, (tokens, top_k)).astype(dtype)
    hidden = random.standard_normal((tokens, 3)).astype(np.float32)
    entry_at = np.argsort(indices.ravel(), kind="stable")
    for backend in ("native", "composed"):
        with use_backend(backend, strict=True):
            permuted, sorted_indices = moe_token_permute(
                paddle.to_tensor(hidden), paddle.to_tensor(indices), rows
            )
        np.testing.assert_array_equal(sorted_indices.numpy(), np.argsort(entry_at, kind="stable"))
        np.testing.assert_array_equal(permuted.numpy(), hidden[entry_at // top_k][: rows or None])


@given(tokens=st.integers(1, 20), top_k=st.integers(1, 5), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_unpermute_undoes_permute_bit_for_bit(tokens, top_k, seed):
    paddle.set_device("cpu")
    random = np.random.default_rng(seed)
    hidden = paddle.to_tensor(random.standard_normal((tokens, 9)).astype(np.float32)).astype("bfloat16")
    indices = paddle.to_tensor(random.integers(0, 4, (tokens, top_k)))
    permuted, sorted_indices = moe_token_permute(hidden, indices)
    copies = moe_token_unpermute(permuted, sorted_indices)
    again = np.repeat(hidden.astype("float32").numpy(), top_k, axis=0)
    np.testing.assert_array_equal(copies.astype("float32").numpy(), again)


def test_indices_that_are_not_an_expert_are_not_counted(device):
    for indices in ([[0, 2], [2, 3]], [[0, 2], [2, 7]], [[0, 2], [2, -1]]):
        assert paddle_release.counts_of(paddle.to_tensor(indices), 3).tolist() == [1, 0, 2]
    assert paddle_release.counts_of(paddle.zeros([0, 2], "int64"), 3).tolist() == [0, 0, 0]


def test_a_dropped_row_is_nothing_even_if_its_weight_is_infinite(device):
    places = paddle.to_tensor([1, 0], dtype="int32")
    for backend in _everywhere(device):
        with use_backend(backend, strict=True):
            probs = paddle.to_tensor([[float("inf"), 2.0]], stop_gradient=False)
            out = moe_token_unpermute(paddle.ones([1, 3]), places, probs)
            assert out.tolist() == [[2, 2, 2]], backend
            out.sum().backward()
            assert probs.grad.tolist() == [[0, 3]], backend


def test_rows_of_other_groups_do_not_matter_in_a_captured_composition():
    """Group sizes are unknown there, and every group multiplies all rows."""
    paddle.set_device("cpu")
    x, weight = paddle.ones([4, 2]), paddle.ones([2, 2, 3])
    x[3] = float("nan")
    groups = paddle.to_tensor([3, 1])

    def program(x, weight, groups):
        return grouped_matmul(x, weight, groups, 1)

    with use_backend("composed", strict=True):
        out = paddle.jit.to_static(program, full_graph=True)(x, weight, groups)
    assert out[:3].tolist() == [[2, 2, 2]] * 3 and bool(out[3].isnan().all())


@pytest.mark.parametrize("group_list", [[1, 1, 5], [1, 0, 4]])
@pytest.mark.parametrize("captured", [False, True])
def test_gradient_of_a_grouped_weight_as_an_operator(device, group_list, captured):
    group_list_type = 0 if group_list[-1] == 5 else 1
    random = np.random.default_rng(0)
    x = random.standard_normal((5, 4)).astype(np.float32)
    dout = random.standard_normal((5, 3)).astype(np.float32)
    expected = np.stack([x[b:e].T @ dout[b:e] for b, e in [(0, 1), (1, 1), (1, 5)]])

    def program(x, dout, groups):
        return grouped_matmul_dweight(x, dout, groups, group_list_type)

    call = paddle.jit.to_static(program, full_graph=True) if captured else program
    for backend in _everywhere(device):
        with use_backend(backend, strict=True):
            result = call(paddle.to_tensor(x), paddle.to_tensor(dout), paddle.to_tensor(group_list))
            np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)
            listed = grouped_matmul_dweight(
                paddle.to_tensor(x), paddle.to_tensor(dout), group_list, group_list_type
            )
            np.testing.assert_allclose(listed.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_frozen_weights_and_rows_of_a_captured_composition(device):
    """The gradient of matmul fails there on an empty factor beside one that learns."""
    x, weights = paddle.ones([5, 4]), [paddle.ones([4, 3]) for _ in range(3)]
    weights[0].stop_gradient = weights[1].stop_gradient = False

    def program(x, a, b, c, groups):
        return grouped_matmul(x, [a, b, c], groups, 1)

    for backend in _everywhere(device):
        with use_backend(backend, strict=True):
            out = paddle.jit.to_static(program, full_graph=True)(x, *weights, paddle.to_tensor([2, 0, 3]))
            out.sum().backward()
        assert out.tolist() == [[4] * 3] * 5
        assert weights[0].grad.tolist() == [[2] * 3] * 4 and not weights[1].grad.any(), backend
        for weight in weights[:2]:
            weight.clear_gradient(False)


# ---- wrong arguments of the host operators, past the checks in Python: words, and no crash

PERMUTE, UNPERMUTE, RESTORE = "pf_moe_token_permute", "pf_moe_token_unpermute", "pf_moe_token_restore"
MATMUL, DWEIGHT = "pf_grouped_matmul", "pf_grouped_matmul_dweight"


def _tokens(dtype="float32"):
    return paddle.ones([3, 4], dtype)


def _ints(*values, dtype="int64"):
    return paddle.to_tensor(np.array(values, dtype))


def _places(*values):
    return _ints(*values, dtype="int32")


def _groups(weight, *values, kind=1):
    return (MATMUL, [_tokens(), weight], _ints(*values), kind, True, True)


def _weight(*shape, dtype="float32"):
    return paddle.ones(shape or [2, 4, 5], dtype)


WRONG = {
    "and indices [3, 1, 1]; accepted": lambda: (PERMUTE, _tokens(), paddle.zeros([3, 1, 1], "int64"), 0),
    "and indices [2, 1]; accepted": lambda: (PERMUTE, _tokens(), paddle.zeros([2, 1], "int64"), 0),
    "and indices [3, 0]; accepted": lambda: (PERMUTE, _tokens(), paddle.zeros([3, 0], "int64"), 0),
    "indices are float32; accepted": lambda: (PERMUTE, _tokens(), paddle.zeros([3, 1]), 0),
    "index -1 is at position 1": lambda: (PERMUTE, _tokens(), _ints(0, -1, 0), 0),
    "index 16777215 is at position 2": lambda: (PERMUTE, _tokens(), _ints(0, 1, 16777215), 0),
    "tokens is float64; accepted": lambda: (PERMUTE, _tokens("float64"), _places(0, 0, 0), 0),
    "sorted index 3 is at position 2": lambda: (RESTORE, _tokens(), _places(0, 1, 3)),
    "sorted index -1 is at position 2": lambda: (RESTORE, _tokens(), _places(0, 1, -1)),
    "sorted index 1 is at position 2": lambda: (RESTORE, _tokens(), _places(0, 1, 1)),
    "and sorted_indices [2]; accepted": lambda: (RESTORE, _tokens(), _places(0, 1)),
    "sorted_indices are int64; accepted": lambda: (RESTORE, _tokens(), _ints(0, 1, 2)),
    "probs has shape [2, 2]": lambda: (UNPERMUTE, _tokens(), _places(0, 1, 2), paddle.ones([2, 2])),
    "probs has shape [3] ": lambda: (UNPERMUTE, _tokens(), _places(0, 1, 2), paddle.ones([3])),
    "probs is int64": lambda: (UNPERMUTE, _tokens(), _places(0, 1, 2), paddle.ones([3, 1], "int64")),
    "the groups cover 2 rows; accepted: all 3": lambda: _groups(_weight(), 1, 1),
    "is 4611686018427387904 at position 1": lambda: _groups(_weight(), 1, 1 << 62),
    "is 2 at position 1; accepted: 3 to 3": lambda: _groups(_weight(), 3, 2, kind=0),
    "is -1 at position 1": lambda: _groups(_weight(), 3, -1),
    "and group_list [1]; accepted": lambda: _groups(_weight(), 3),
    "group_list_type is 2; accepted": lambda: _groups(_weight(), 3, 0, kind=2),
    "weight [1, 5, 5]": lambda: _groups(_weight(1, 5, 5), 3),
    "weight is float16 and x is float32": lambda: _groups(_weight(1, 4, 5, dtype="float16"), 3),
    "weight [4, 6] of 2": lambda: (
        *(MATMUL, [_tokens(), _weight(4, 5), _weight(4, 6)]),
        *(_ints(1, 2), 1, True, True),
    ),
    "factors has 1 tensors; accepted": lambda: (MATMUL, [_tokens()], _ints(3), 1, True, True),
    "group_list is int32; accepted": lambda: (
        MATMUL,
        [_tokens(), _weight(1, 4, 5)],
        _places(3),
        1,
        True,
        True,
    ),
    "dout [2, 5]": lambda: (DWEIGHT, _tokens(), paddle.ones([2, 5]), _ints(3), 1),
}


@pytest.mark.parametrize("words", WRONG)
def test_host_operators_refuse_wrong_arguments(words):
    paddle.set_device("cpu")
    assert native.unsupported_reason(_tokens()) is None
    with pytest.raises(ValueError, match=re.escape(words)):
        native.call(*WRONG[words]())


def test_a_captured_program_refuses_wrong_values_when_it_runs():
    paddle.set_device("cpu")

    def program(tokens, indices):
        return moe_token_permute(tokens, indices)[0]

    captured = paddle.jit.to_static(program, full_graph=True)
    assert captured(_tokens(), paddle.to_tensor([2, 1, 0])).shape == [3, 4]
    with pytest.raises(ValueError, match="index -1 is at position 1"):
        captured(_tokens(), paddle.to_tensor([2, -1, 0]))


@pytest.mark.parametrize(
    "words", ["and indices [3, 1, 1]; accepted", "probs has shape [3] ", "weight [1, 5, 5]"]
)
def test_a_captured_program_refuses_wrong_shapes_when_it_runs(words):
    paddle.set_device("cpu")
    operator, first, *others = WRONG[words]()
    tensors = [other for other in others if isinstance(other, paddle.Tensor)]
    attributes = [other for other in others if not isinstance(other, paddle.Tensor)]

    def program(first, tensors):
        return native.call(operator, first, *tensors, *attributes)[0]

    with pytest.raises(ValueError, match=re.escape(words)):
        paddle.jit.to_static(program, full_graph=True)(first, tensors)


def test_no_rows_keep_their_dtype_under_auto_cast():
    paddle.set_device("npu:0")
    x, weight = (paddle.zeros(shape, "bfloat16") for shape in ([0, 8], [2, 8, 4]))
    x.stop_gradient = weight.stop_gradient = False
    for level in ("O1", "O2"):
        with use_backend("ascend", strict=True), paddle.amp.auto_cast(level=level, dtype="bfloat16"):
            out = grouped_matmul(x, weight, [0, 0], 1)
        assert (out.shape, out.dtype) == ([0, 4], paddle.bfloat16)
        out.sum().backward()
    assert x.grad.shape == [0, 8] and float(weight.grad.abs().sum()) == 0
