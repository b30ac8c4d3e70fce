"""Every sparse mode, named by its number, against the enumerated dense mask: batches and packed sequences.

``npu_fusion_attention`` takes the mode from its caller, so that each one runs whatever the mask compiler
likes.
"""

from itertools import accumulate

import numpy as np
import paddle
import pytest
from attention_calls import (
    LAYOUTS,
    assert_same_attention,
    outputs_and_gradients,
    random_batch,
    random_tokens,
    tensor,
    values,
)
from mask_strategies import block_diagonal

from paddle_fused import flash_attention, masks
from paddle_fused.compat import npu_fusion_attention
from paddle_fused.masks import hidden_matrix, hidden_sequences
from paddle_fused.ops.attention.cases import FROM_BNSD, TO_BNSD, golden

pytestmark = pytest.mark.sampled

LENGTHS = [(19, 19), (11, 21), (21, 11)]
HEADS = (4, 2)
BAND = {"pre_tokens": 6, "next_tokens": 3}


def own_mask(*shape):
    """Hides a third, but never the first or the last key."""
    hidden = np.random.default_rng(3).random(shape) < 0.3
    hidden[..., [0, -1]] = False
    return hidden


def atten_mask(mode, full):
    if mode in (0, 1, 5):
        return None if full is None else paddle.to_tensor(full)
    return masks.compressed(prefix=mode == 6)


def check(call, dense_call, arrays, what):
    """The call on host kernels and on composed operators, against the dense mask in float64."""
    exact = outputs_and_gradients(dense_call, arrays, "float64", backend="composed")
    for backend in ("native", "composed"):
        actual = outputs_and_gradients(call, arrays, backend=backend)
        assert_same_attention(actual, exact, f"{what}, {backend}")
    return exact[0]


def full_mask_of(mode, lengths, prefix):
    """The mask of modes 0, 1 and 5, which accept any mask; the mode hides more."""
    if mode == 0:
        return own_mask(2, 1, *lengths)
    if mode == 1:
        return own_mask(*lengths)
    if mode == 5:
        return np.stack([hidden_matrix(6, *lengths, prefix=length)[None] for length in prefix])
    return None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("mode", range(7))
def test_mode_of_a_batch(mode, lengths, layout):
    query_len, key_len = lengths
    prefix = [max(1, key_len - query_len), key_len - 2]
    full = full_mask_of(mode, lengths, prefix)
    arguments = {"sparse_mode": mode, "scale": 0.3, "pre_tockens": 6, "next_tockens": 3}
    if mode in (5, 6):
        arguments["prefix"] = prefix
    if mode == 0:  # the mask and the band together may hide all keys of a query
        arguments["inner_precise"] = 2

    def call(q, k, v):
        mask = atten_mask(mode, full)
        return npu_fusion_attention(q, k, v, HEADS[0], layout, atten_mask=mask, **arguments)[0]

    hidden = [
        hidden_matrix(
            mode,
            *lengths,
            prefix=prefix[b],
            mask=full if full is None or full.ndim == 2 else full[b, 0],
            **BAND,
        )
        for b in range(2)
    ]
    hidden = np.stack(hidden)[:, None]

    def dense_call(q, k, v):
        options = {"layout": layout, "num_heads": HEADS[0], "scale": 0.3}
        return flash_attention(q, k, v, masks.dense(hidden, invalid_rows=True), **options)

    arrays = random_batch(layout, lengths, HEADS, dims=(8, 6))
    out = check(call, dense_call, arrays, f"mode {mode}")
    tensors = [TO_BNSD[layout](x.astype(np.float64), n) for x, n in zip(arrays, (4, 2, 2), strict=True)]
    truth = FROM_BNSD[layout](golden(*tensors, hidden, scale=0.3))
    np.testing.assert_allclose(out, truth, rtol=0, atol=1e-12)


QUERY_LENS, KEY_LENS = [5, 0, 1, 9, 4], [7, 3, 1, 9, 6]
PACKED = {
    "0, no mask": (0, {}, None),
    "0": (0, {"pre_tockens": 20, "next_tockens": 2}, own_mask(9, 9)),
    "1": (1, {}, own_mask(9, 9)),
    "2": (2, {}, None),
    "3": (3, {}, None),
    "4": (4, {"pre_tockens": 2, "next_tockens": 1}, None),
    "6": (6, {"prefix": [3, 3, 1, 2, 6]}, None),
    "7": (7, {"next_tockens": -1}, None),
    "8": (8, {"next_tockens": -1}, None),
}


@pytest.mark.parametrize("name", PACKED)
def test_mode_of_sequences(name):
    mode, arguments, full = PACKED[name]
    ends = [list(accumulate(lens)) for lens in (QUERY_LENS, KEY_LENS)]
    tokens = {
        "pre_tokens": arguments.get("pre_tockens", 99),
        "next_tokens": arguments.get("next_tockens", 99),
    }
    blocks = hidden_sequences(mode, QUERY_LENS, KEY_LENS, mask=full, prefix=arguments.get("prefix"), **tokens)

    def call(q, k, v):
        mask = None if name == "0, no mask" else atten_mask(mode, full)
        lengths = {"actual_seq_qlen": [*ends[0], 0], "actual_seq_kvlen": [*ends[1], 0]}
        return npu_fusion_attention(
            q, k, v, HEADS[0], "TND", atten_mask=mask, sparse_mode=mode, scale=0.3, **arguments, **lengths
        )[0]

    hidden = block_diagonal(blocks, sum(QUERY_LENS), sum(KEY_LENS))

    def dense_call(q, k, v):
        q, k, v = (x.unsqueeze(0) for x in (q, k, v))
        return flash_attention(q, k, v, masks.dense(hidden), scale=0.3).squeeze(0)

    check(call, dense_call, random_tokens(sum(QUERY_LENS), sum(KEY_LENS), HEADS), f"mode {name}")


def test_all_that_torch_npu_returns():
    paddle.set_device("cpu")
    x = paddle.randn([2, 6, 4, 8])
    out, row_max, row_sum, reserved, seed, offset, numel = npu_fusion_attention(x, x, x, 4, "BSND", scale=0.5)
    scores = paddle.matmul(x.transpose([0, 2, 1, 3]), x.transpose([0, 2, 3, 1])) * 0.5
    assert (row_max.shape, row_sum.shape, reserved.shape) == ([2, 4, 6, 8], [2, 4, 6, 8], [0])
    assert (seed, offset, numel) == (0, 0, 2 * 4 * 6 * 6)
    for copy in range(8):
        np.testing.assert_allclose(row_max[..., copy], scores.max(-1), rtol=1e-5)
        exponential = (scores - scores.max(-1, keepdim=True)).exp().sum(-1)
        np.testing.assert_allclose(row_sum[..., copy], exponential, rtol=1e-5)
    assert out.shape == x.shape
    again = npu_fusion_attention(x, x, x, 4, "BSND", keep_prob=0.5)
    assert isinstance(again[4], int) and (again[4], again[5]) != (0, 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_huge_scores_choose_one_key(dtype):
    """Scores differ by more than exp's range: no NaN, and only value has a gradient."""
    huge = 1e4 if dtype == "float16" else 1e30
    random = np.random.default_rng(0)
    q, v = random.standard_normal((2, 1, 20, 2, 8))
    k = np.zeros_like(v)
    k[0, :, :, 0] = huge * np.arange(20)[:, None] / 20
    q[..., 0] = 1

    def call(q, k, v):
        return flash_attention(q, k, v, masks.causal())

    out, q_grad, k_grad, v_grad = outputs_and_gradients(call, [q, k, v], dtype)
    rounded = values(tensor(v, dtype))
    np.testing.assert_array_equal(out, rounded)  # the last key that a query sees is the largest
    assert not q_grad.any() and not k_grad.any()
    weight = np.random.default_rng(99).standard_normal(out.shape)
    np.testing.assert_array_equal(v_grad, values(tensor(weight, dtype)))


def test_pse_is_added_before_the_scale():
    paddle.set_device("cpu")
    x, pse = paddle.randn([1, 6, 2, 8]), paddle.randn([1, 2, 6, 6])
    out = npu_fusion_attention(x, x, x, 2, "BSND", pse=pse, scale=0.5)[0]
    tensors = [x.numpy().astype(np.float64).transpose(0, 2, 1, 3)] * 3
    truth = golden(*tensors, bias=pse.numpy().astype(np.float64), scale=0.5)
    np.testing.assert_allclose(out.numpy().transpose(0, 2, 1, 3), truth, atol=1e-6)


def test_arguments_are_those_of_torch_npu():
    import inspect

    parameters = inspect.signature(npu_fusion_attention).parameters
    assert " ".join(parameters) == (
        "query key value head_num input_layout pse padding_mask atten_mask scale keep_prob pre_tockens "
        "next_tockens inner_precise prefix actual_seq_qlen actual_seq_kvlen sparse_mode "
        "gen_mask_parallel sync softmax_layout sink dropout_mask seed offset"
    )
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    assert defaults["scale"] == defaults["keep_prob"] == 1.0
    assert defaults["pre_tockens"] == defaults["next_tockens"] == 2147483647
