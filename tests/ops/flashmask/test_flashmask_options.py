"""flashmask_attention: its other results, dropout, what it reads, captured programs, and bad input."""

import numpy as np
import paddle
import pytest
from paddle.static import InputSpec
from row_index_kinds import FORMS

from paddle_fused import contracts, flashmask_attention, masks, use_backend
from paddle_fused.masks import compiler
from paddle_fused.ops.flashmask_attention.cases import hidden_by, shared_question


def qkv(lengths=(24, 24), heads=(4, 2), dim=8):
    random = np.random.default_rng(0)
    sizes = (lengths[0], heads[0]), (lengths[1], heads[1]), (lengths[1], heads[1])
    return [paddle.to_tensor(random.standard_normal((1, *size, dim)).astype(np.float32)) for size in sizes]


def test_log_sum_exp_and_scale(device):
    indices = np.array([10] * 10 + [20] * 10 + [0] * 4, np.int32).reshape(1, 1, 24, 1)
    query, key, value = qkv()
    query.stop_gradient = False
    options = {"startend_row_indices": paddle.to_tensor(indices), "causal": True}
    out, lse, seed = flashmask_attention(
        query, key, value, softmax_scale=0.5, return_softmax_lse=True, return_seed_offset=True, **options
    )
    q, k = (x.numpy().astype(np.float64).transpose(0, 2, 1, 3) for x in (query, key))
    scores = np.where(hidden_by(indices, True, 24), -np.inf, 0.5 * q @ k.repeat(2, 1).swapaxes(-1, -2))
    with np.errstate(divide="ignore"):
        exact = np.log(np.exp(scores).sum(-1))
    assert np.isneginf(exact[..., 20:]).all() and lse.stop_gradient and seed.tolist() == [0, 0]
    np.testing.assert_allclose(lse.numpy(), exact, rtol=1e-5, atol=1e-5)
    scaled = flashmask_attention(query * (0.5 * 8**0.5), key, value, **options)
    np.testing.assert_allclose(out.numpy(), scaled.numpy(), atol=1e-5)


def factors(seed, indices, **options):
    """The dropout factors of a call, of its output and of its backward pass: both show P * R."""
    size = indices.shape[2]
    paddle.seed(seed)
    q = paddle.zeros([1, size, 2, size])
    v = paddle.eye(size).reshape([1, size, 1, size]).tile([1, 1, 2, 1])
    v.stop_gradient = False
    out, *others = flashmask_attention(
        q, q, v, paddle.to_tensor(indices), causal=True, dropout=0.4, return_seed_offset=True, **options
    )
    (v_grad,) = paddle.grad(out, [v], paddle.eye(size).reshape([1, size, 1, size]).tile([1, 1, 2, 1]))
    return out.numpy().transpose(0, 2, 1, 3), v_grad.numpy().transpose(0, 2, 3, 1), others[0]


KINDS = {
    "documents": np.array([30] * 30 + [64] * 34, np.int32).reshape(1, 1, 64, 1),
    "shared question": np.array(shared_question(20, 10, 34), np.int32).reshape(1, 1, 64, 1),
    "rows": np.random.default_rng(0).integers(0, 65, (1, 1, 64, 1)).astype(np.int32),
}


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_one_mask_in_both_passes(kind, device):
    forward, backward, seed = factors(5, KINDS[kind])
    np.testing.assert_allclose(forward, backward, rtol=0, atol=1e-6)
    visible = np.broadcast_to(~hidden_by(KINDS[kind], True, 64), forward.shape)
    assert not forward[~visible].any()
    kept = (forward > 0)[visible].mean()
    assert abs(kept - 0.6) < 5 * np.sqrt(0.6 * 0.4 / visible.sum())
    assert (factors(5, KINDS[kind])[0] == forward).all() and (factors(6, KINDS[kind])[0] != forward).any()
    again, _, same = factors(7, KINDS[kind], fixed_seed_offset=seed)
    assert (again == forward).all() and same.tolist() == seed.tolist()
    whole, _, none = factors(5, KINDS[kind], training=False)
    assert (whole > 0)[visible].all() and none.tolist() == [0, 0]


def test_dropout_by_a_named_generator(device):
    names = [f"flashmask {number} of {device}" for number in (1, 2)]
    for name in names:
        paddle.framework.random.set_random_seed_generator(name, 11)
    first, other = (factors(5, KINDS["documents"], rng_name=names[0])[0] for _ in range(2))
    again = factors(6, KINDS["documents"], rng_name=names[1])[0]
    assert (first == again).all() and (first != other).any()


def test_layers_share_the_compiled_mask(device):
    x = paddle.randn([1, 20, 2, 8])
    rows = paddle.to_tensor([[[8] * 8 + [20] * 12]], dtype="int32")
    compiled = compiler._compile_rows.cache_info().misses
    for _ in range(3):
        first = flashmask_attention(x, x, x, rows.unsqueeze(-1), causal=True)  # as PaddleFormers' layers do
    assert compiler._compile_rows.cache_info().misses <= compiled + 1
    rows[0, 0] = 20
    changed = flashmask_attention(x, x, x, rows.unsqueeze(-1), causal=True)
    assert (changed != first).any()
    assert (changed == flashmask_attention(x, x, x, causal=True)).all()
    for length in range(1, 20):  # in the memory of a tensor that is gone there may be other indices
        fresh = paddle.to_tensor([[[length] * length + [20] * (20 - length)]], dtype="int32").unsqueeze(-1)
        assert masks.row_indices(fresh).indices[0, 0, 0, 0] == length
        del fresh


def captured(**options):
    def program(query, key, value, rows):
        return flashmask_attention(query, key, value, rows, **options)

    return paddle.jit.to_static(program, full_graph=True)


def test_views_of_one_tensor_are_told_apart(device):
    values = np.arange(16, dtype=np.int32).reshape(2, 2, 4, 1)
    rows = paddle.to_tensor(values)
    views = {
        "whole": (rows, values),
        "first": (rows[:1], values[:1]),
        "second": (rows[1:], values[1:]),
        "transposed": (rows.transpose([1, 0, 2, 3]), values.transpose(1, 0, 2, 3)),
        "reshaped": (rows.reshape([2, 1, 4, 2]), values.reshape(2, 1, 4, 2)),
    }
    for name, (view, expected) in views.items():
        causal = expected.shape[-1] == 1
        np.testing.assert_array_equal(masks.row_indices(view, causal).indices, expected, err_msg=name)
    pairs = rows.reshape([2, 1, 4, 2])
    assert masks.row_indices(pairs, True).causal and not masks.row_indices(pairs, False).causal


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("causal", "columns"), FORMS)
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("lengths", [(24, 24), (16, 24)])
def test_captured_program_whose_input_the_indices_are(causal, columns, heads, lengths, device):
    random = np.random.default_rng(columns)
    program, tensors = captured(causal=causal), qkv(lengths)
    for _ in range(2):
        rows = random.integers(0, lengths[0] + 1, (1, heads, lengths[1], columns)).astype(np.int32)
        rows = paddle.to_tensor(rows)
        with use_backend("native", strict=True):
            eager, ran = (f(*tensors, rows) for f in (captured_body(causal), program))
        np.testing.assert_allclose(ran.numpy(), eager.numpy(), atol=2e-6)


def captured_body(causal):
    return lambda query, key, value, rows: flashmask_attention(query, key, value, rows, causal=causal)


def test_captured_program_of_unknown_lengths(device):
    query = InputSpec([-1, -1, 2, 8], "float32")

    def packed(x, rows):
        return flashmask_attention(x, x, x, rows, causal=True)

    def window(x):
        return flashmask_attention(x, x, x, causal=True, window_size=3)

    specs = [query, InputSpec([-1, 1, -1, 1], "int32")]
    programs = [
        paddle.jit.to_static(function, input_spec=specs[:count], full_graph=True)
        for function, count in ((packed, 2), (window, 1))
    ]
    for length in (8, 11):
        x = paddle.randn([2, length, 2, 8])
        rows = paddle.to_tensor([[[[5]] * 5 + [[length]] * (length - 5)]] * 2, dtype="int32")
        np.testing.assert_allclose(programs[0](x, rows).numpy(), packed(x, rows).numpy(), atol=2e-6)
        np.testing.assert_allclose(programs[1](x).numpy(), window(x).numpy(), atol=2e-6)


ROWS = paddle.full([1, 1, 24, 1], 24, "int32")
PAIRS = paddle.full([1, 1, 24, 2], 24, "int32")
BAD = {
    "a list": ({"startend_row_indices": [24] * 24}, "indices is list; accepted: a paddle tensor"),
    "dtype": ({"startend_row_indices": ROWS.astype("int64")}, "is int64; accepted: int32"),
    "rank": ({"startend_row_indices": ROWS[..., 0]}, r"has shape \[1, 1, 24\]; accepted: \[batch"),
    "columns": ({"startend_row_indices": ROWS, "causal": False}, "1 columns with causal=False"),
    "three columns": ({"startend_row_indices": paddle.full([1, 1, 24, 3], 1, "int32")}, "has 3 columns"),
    "keys": ({"startend_row_indices": ROWS[:, :, :23]}, r"has shape \[1, 1, 23, 1\]; accepted: \[1, 1 or 2"),
    "batch": ({"startend_row_indices": ROWS.tile([2, 1, 1, 1])}, r"has shape \[2, 1, 24, 1\]"),
    "heads": ({"startend_row_indices": ROWS.tile([1, 3, 1, 1])}, r"has shape \[1, 3, 24, 1\]"),
    "window too": ({"startend_row_indices": ROWS, "window_size": 3}, "window_size and startend_row_indices"),
    "negative window": ({"window_size": -1}, "window_size is -1 for 24 queries"),
    "window of text": ({"window_size": "wide"}, "window_size"),
    "block mask": ({"startend_row_indices": ROWS, "block_mask": ROWS}, "block_mask"),
    "seed": ({"dropout": 0.1, "fixed_seed_offset": ROWS}, r"fixed_seed_offset is int32 .*accepted: int64"),
    "generator": ({"dropout": 0.1, "rng_name": "unheard of"}, "no generator has this name"),
    "dropout": ({"dropout": 1.0}, "dropout is 1.0"),
    "rank of query": ({"query": paddle.zeros([24, 4, 8])}, r"query has shape \[24, 4, 8\] in layout BSND"),
    "no query": ({"query": None}, "query is NoneType; accepted: a paddle tensor"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    changed, words = BAD[name]
    arguments = dict(zip(("query", "key", "value"), qkv(), strict=True)) | {"causal": True} | changed
    with pytest.raises(ValueError, match=words):
        flashmask_attention(**arguments)


def test_bad_masks():
    with pytest.raises(ValueError, match="row_indices\\(\\) got list"):
        masks.row_indices([1, 2])
    rows = masks.row_indices(np.full((1, 1, 8, 1), 8, np.int32))
    with pytest.raises(ValueError, match=r"8 keys; .* 9"):
        rows.to_dense(9)
    with pytest.raises(ValueError, match="layouts BSND, BNSD, BSH and SBH"):
        rows.explain((8, 2, 16), layout="TND", cu_seqlens_q=[0, 8], cu_seqlens_k=[0, 8])
    assert contracts.ContractError.__mro__[1] is ValueError
