"""No leaks: a hidden token changes no bit, a visible one does, in forward and gradients.

One key and its value are replaced. Queries that do not see it must keep their output and their gradient;
queries that see it must not. Then one query's loss is taken away: keys that it does not see keep their
gradients bit for bit.
"""

import numpy as np
import paddle
import pytest
from attention_calls import random_batch, random_tokens, tensor
from mask_strategies import block_diagonal

from paddle_fused import flash_attention, masks, use_backend

pytestmark = pytest.mark.sampled

S = 24


def own_mask():
    hidden = np.random.default_rng(1).random((2, 1, S, S)) < 0.4
    hidden[..., 5, :] = [True] * 23 + [False]
    hidden[..., 0] &= ~hidden.all(-1)
    return masks.dense(hidden, invalid_rows=True)


MASKS = [
    masks.causal(),
    masks.band(3, 2),
    masks.prefix([4, 9]),
    masks.documents([5, 0, 1, 18]),
    masks.documents([5, 0, 1, 18], causal=False),
    masks.documents([[S], [8, 16]]) & masks.band(3, None),
    masks.documents([10, 14]) & masks.prefix(3),
    own_mask(),
    own_mask() & masks.causal(),
]
BACKENDS = [("native", "cpu", "float32"), ("native", "npu", "bfloat16"), ("composed", "cpu", "float32")]


def results(call, arrays, weight, dtype, device):
    """Bits of the output and of the gradients, as arrays."""
    tensors = [tensor(array, dtype, device) for array in arrays]
    out = call(*tensors)
    gradients = paddle.grad(out, tensors, tensor(weight, dtype, device, False))
    return [x.detach().astype("float32").numpy() for x in (out, *gradients)]


def check_leakage(call, arrays, visible, dtype, device):
    """``visible``: bool [B, Sq, Skv]; tensors [B, S, N, D]. Changes keys and queries one by one."""
    random = np.random.default_rng(7)
    weight = random.standard_normal(arrays[0].shape)
    before = results(call, arrays, weight, dtype, device)
    for position in range(0, visible.shape[2], 5):
        changed = [array.copy() for array in arrays]
        for array in changed[1:]:
            array[:, position] = random.standard_normal(array[:, position].shape) * 3
        after = results(call, changed, weight, dtype, device)
        sees = visible[:, :, position]
        for name, x, y in (("out", before[0], after[0]), ("dq", before[1], after[1])):
            np.testing.assert_array_equal(x[~sees], y[~sees], err_msg=f"{name}, key {position}")
        # Every query that sees the token and another one has another output.
        several = sees & (visible.sum(-1) > 0)
        assert (before[0] != after[0]).any((-1, -2))[several].all(), f"key {position}"
    for position in range(0, visible.shape[1], 5):
        silenced = weight.copy()
        silenced[:, position] = 0
        after = results(call, arrays, silenced, dtype, device)
        sees = visible[:, position]
        for name, x, y in (("dk", before[2], after[2]), ("dv", before[3], after[3])):
            np.testing.assert_array_equal(x[~sees], y[~sees], err_msg=f"{name}, query {position}")
        assert (before[3] != after[3]).any((-1, -2))[sees].all(), f"query {position}"


@pytest.mark.parametrize("backend, device, dtype", BACKENDS)
@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_batches(mask, backend, device, dtype):
    paddle.set_device("npu:0" if device == "npu" else "cpu")
    hidden = np.broadcast_to(mask.to_dense(S), (2, 1, S, S))[:, 0]
    with use_backend(backend, strict=True):
        check_leakage(
            lambda q, k, v: flash_attention(q, k, v, mask),
            random_batch("BSND", (S, S)),
            ~hidden,
            dtype,
            device,
        )


@pytest.mark.parametrize("backend, device, dtype", BACKENDS)
@pytest.mark.parametrize("mask", [None, masks.causal(), masks.band(2, 0)], ids=repr)
def test_packed_sequences(mask, backend, device, dtype):
    paddle.set_device("npu:0" if device == "npu" else "cpu")
    lens = [5, 0, 1, 18]
    ends = np.cumsum([0, *lens]).tolist()
    blocks = [np.zeros((n, n), bool) if mask is None else mask.to_dense(n) for n in lens]

    def call(q, k, v):
        tokens = [x.squeeze(0) for x in (q, k, v)]
        return flash_attention(*tokens, mask, layout="TND", cu_seqlens_q=ends, cu_seqlens_k=ends).unsqueeze(0)

    arrays = [x[None] for x in random_tokens(S, S)]
    with use_backend(backend, strict=True):
        check_leakage(call, arrays, ~block_diagonal(blocks, S, S)[None], dtype, device)


@pytest.mark.parametrize("backend, device, dtype", BACKENDS)
def test_true_hides(backend, device, dtype):
    """Where all keys but one are hidden, the output is that key's value."""
    paddle.set_device("npu:0" if device == "npu" else "cpu")
    hidden = np.ones((6, 6), bool)
    hidden[np.arange(6), [3, 1, 0, 5, 2, 4]] = False
    q, k, v = (tensor(x, dtype, device) for x in random_batch("BSND", (6, 6), (2, 2)))
    with use_backend(backend, strict=True):
        out = flash_attention(q, k, v, masks.dense(hidden))
    expected = v.numpy()[:, [3, 1, 0, 5, 2, 4]]
    np.testing.assert_array_equal(out.numpy(), expected)
