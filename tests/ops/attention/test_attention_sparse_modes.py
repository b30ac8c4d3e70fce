"""Sparse modes 0 to 8 of ``pf_flash_attention`` against dense matrices that are written out key by key."""

import attention_operator as attention
import numpy as np
import paddle
import pytest
from attention_operator import FAR, attend, enumerated

pytestmark = pytest.mark.sampled

# Sq less than, equal to and greater than Skv; the last two cross the kernels' tiles of 64.
SIZES = [(1, 1), (1, 6), (6, 1), (3, 7), (7, 3), (5, 5), (70, 150), (150, 70), (130, 130)]
BANDS = [(FAR, FAR), (FAR, 0), (2, 0), (0, 2), (1, 1), (3, -2), (-2, 3), (64, 0), (70, -5), (0, 0)]


def seen(query_tokens: int, key_tokens: int, **arguments):
    """bool [Sq, Skv]: which keys take part in which query, as the output shows it and as the gradients do.

    All scores are equal and the values are unit vectors: the output's row i is uniform over the keys that
    query i sees, and the gradient of value j, for a gradient of ones, sums these weights over the queries.
    """
    d = key_tokens
    shape = arguments.pop("shape", lambda tokens: (1, tokens, 1, d))
    query = paddle.zeros(shape(query_tokens))
    key = paddle.zeros(shape(key_tokens))
    value = paddle.eye(key_tokens, d).reshape(shape(key_tokens))
    value.stop_gradient = False
    out = attend(query, key, value, **arguments)[0]
    (value_grad,) = paddle.grad(out, [value], paddle.ones_like(out))
    weights = out.numpy().reshape(query_tokens, key_tokens)
    keep = weights > 0
    expected = keep / np.maximum(keep.sum(1, keepdims=True), 1)
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    np.testing.assert_allclose(
        value_grad.numpy().reshape(key_tokens, d)[:, 0], expected.sum(0), rtol=1e-5, atol=1e-6
    )
    return keep


@pytest.mark.parametrize("sq, skv", SIZES)
@pytest.mark.parametrize("mode", [0, 2, 3, 4])
def test_band_modes(mode, sq, skv):
    for pre, next in BANDS if mode in (0, 4) else [(1, -1)]:  # modes 2 and 3 do not read pre and next
        keep = seen(sq, skv, mode=mode, pre=pre, next=next)
        np.testing.assert_array_equal(keep, enumerated(mode, sq, skv, pre, next), err_msg=f"{pre}, {next}")


@pytest.mark.parametrize("sq, skv", SIZES)
@pytest.mark.parametrize("mode", [5, 6])
def test_prefix_modes(mode, sq, skv):
    for prefix in {0, 1, skv // 2, max(0, skv - sq), skv - 1, skv}:
        keep = seen(sq, skv, mode=mode, prefix=paddle.to_tensor([prefix], dtype="int64"))
        np.testing.assert_array_equal(keep, enumerated(mode, sq, skv, prefix=prefix), err_msg=str(prefix))


@pytest.mark.parametrize("sq, skv", [(3, 7), (150, 70)])
def test_mask_of_modes_0_and_1(sq, skv):
    hidden = np.random.default_rng(0).random((sq, skv)) < 0.5
    hidden[:, 0] = False
    mask = paddle.to_tensor(hidden)
    np.testing.assert_array_equal(seen(sq, skv, mode=1, mask=mask, pre=0, next=0), ~hidden)
    np.testing.assert_array_equal(seen(sq, skv, mode=0, mask=mask), ~hidden)
    inside = enumerated(0, sq, skv, pre=sq, next=2)
    np.testing.assert_array_equal(seen(sq, skv, mode=0, mask=mask, pre=sq, next=2), inside & ~hidden)


@pytest.mark.parametrize("mode", [2, 3, 4, 6])
def test_a_compressed_mask_is_not_read(mode):
    mask = paddle.ones([2048, 2048], "bool")  # would hide everything
    prefix = paddle.to_tensor([2], dtype="int64")
    keep = seen(4, 6, mode=mode, mask=mask, pre=1, next=0, prefix=prefix)
    np.testing.assert_array_equal(keep, enumerated(mode, 4, 6, 1, 0, 2))


SEQUENCES = {
    "one": ([5], [7]),
    "length 1": ([1, 3, 1], [1, 4, 1]),
    "equal": ([3, 70, 5], [3, 70, 5]),
    "empty in the middle": ([2, 2, 0, 2, 2], [2, 2, 0, 2, 2]),
    "empty at both ends": ([0, 4, 3, 0], [0, 6, 5, 0]),
    "keys without queries": ([0, 4, 3, 0], [3, 6, 5, 2]),
    "long": ([70, 1, 66], [130, 2, 140]),
}


def packed_keep(mode, query_lengths, key_lengths, pre, next, prefix) -> np.ndarray:
    """Block diagonal [T, Tkv], from CANN's description of the modes of packed sequences."""
    keep = np.zeros((sum(query_lengths), sum(key_lengths)), bool)
    used = [i for i, length in enumerate(query_lengths) if length > 0]
    q = k = 0
    for i, (sq, skv) in enumerate(zip(query_lengths, key_lengths, strict=True)):
        of_this = mode
        if mode == 7:
            of_this = 4 if i == used[-1] else 3
        if mode == 8:
            of_this = 4 if i == used[0] else 2
        keep[q : q + sq, k : k + skv] = enumerated(of_this, sq, skv, pre, next, prefix[i])
        q, k = q + sq, k + skv
    return keep


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("mode", [0, 2, 3, 4, 6, 7, 8])
def test_modes_of_packed_sequences(mode, name):
    query_lengths, key_lengths = SEQUENCES[name]
    for pre, next in [(FAR, 0), (FAR, -1), (2, 1), (FAR, FAR)]:
        prefix = [length // 2 for length in key_lengths]
        ends = {
            f"{side}_ends": paddle.to_tensor(np.cumsum(lengths), dtype="int64")
            for side, lengths in (("query", query_lengths), ("key", key_lengths))
        }
        tokens, keys = sum(query_lengths), sum(key_lengths)
        keep = seen(
            tokens,
            keys,
            shape=lambda t: (t, 1, sum(key_lengths)),
            layout="TND",
            mode=mode,
            pre=pre,
            next=next,
            prefix=paddle.to_tensor(prefix, dtype="int64"),
            **ends,
        )
        expected = packed_keep(mode, query_lengths, key_lengths, pre, next, prefix)
        np.testing.assert_array_equal(keep, expected, err_msg=f"{pre}, {next}")


def test_a_mask_is_shared_by_packed_sequences():
    hidden = np.random.default_rng(1).random((4, 6)) < 0.5
    hidden[:, 0] = False
    ends = [paddle.to_tensor(e, dtype="int64") for e in ([4, 5, 8], [6, 8, 10])]
    keep = seen(
        8,
        10,
        shape=lambda t: (t, 1, 10),
        layout="TND",
        mode=1,
        mask=paddle.to_tensor(hidden),
        query_ends=ends[0],
        key_ends=ends[1],
    )
    expected = np.zeros((8, 10), bool)
    for (q0, q1), (k0, k1) in zip([(0, 4), (4, 5), (5, 8)], [(0, 6), (6, 8), (8, 10)], strict=True):
        expected[q0:q1, k0:k1] = ~hidden[: q1 - q0, : k1 - k0]
    np.testing.assert_array_equal(keep, expected)


def test_every_batch_entry_has_its_prefix():
    case = attention.Case(3, 5, 9, 1, 1, 9, 9, mode=6, prefix=[0, 9, 6])
    value = paddle.eye(9).reshape([1, 9, 1, 9]).expand([3, 9, 1, 9])
    prefix = paddle.to_tensor(case.prefix, dtype="int64")
    zeros = paddle.zeros([3, 5, 1, 9]), paddle.zeros([3, 9, 1, 9])
    out = attend(*zeros, value, mode=6, prefix=prefix)[0]
    np.testing.assert_array_equal(out.numpy()[:, :, 0] > 0, case.visible()[:, 0])
