"""The bands of ``pf_flash_attention`` against dense matrices that are written out key by key."""

import attention_operator as attention
import numpy as np
import paddle
import pytest
from attention_operator import CAUSAL, FAR, attend, enumerated
from mask_strategies import block_diagonal

pytestmark = pytest.mark.sampled

# Sq less than, equal to and greater than Skv; the last two cross the kernels' tiles of 64.
SIZES = [(1, 1), (1, 6), (6, 1), (3, 7), (7, 3), (5, 5), (70, 150), (150, 70), (130, 130)]
BANDS = [(-FAR, FAR), CAUSAL[:2], (-2, 0), (0, 2), (-1, 1), (-3, -2), (2, 3), (-64, 0), (-70, -5), (0, 0)]
BANDS += [(-(2**63), 2**63 - 1), (3, 2)]  # the widest numbers; nothing


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


ALIGN = ["top_left", "bottom_right"]


@pytest.mark.parametrize("sq, skv", SIZES)
@pytest.mark.parametrize("align", ALIGN)
def test_bands(align, sq, skv):
    for low, high in BANDS:
        keep = seen(sq, skv, bands=[low, high, 0], align=align)
        expected = enumerated(sq, skv, low, high, align=align)
        np.testing.assert_array_equal(keep, expected, err_msg=f"{low}, {high}")


@pytest.mark.parametrize("sq, skv", SIZES)
@pytest.mark.parametrize("align", ALIGN)
def test_prefixes(align, sq, skv):
    for prefix in {0, 1, skv // 2, max(0, skv - sq), skv - 1, skv}:
        keep = seen(sq, skv, bands=[-FAR, 0, prefix], align=align)
        expected = enumerated(sq, skv, high=0, prefix=prefix, align=align)
        np.testing.assert_array_equal(keep, expected, err_msg=str(prefix))


@pytest.mark.parametrize("sq, skv", [(3, 7), (150, 70)])
def test_a_mask_inside_of_a_band(sq, skv):
    hidden = np.random.default_rng(0).random((sq, skv)) < 0.5
    hidden[:, 0] = False
    mask = paddle.to_tensor(hidden)
    np.testing.assert_array_equal(seen(sq, skv, mask=mask), ~hidden)
    for band in ([-sq, 2, 0], [-sq, 2, skv // 2]):
        inside = enumerated(sq, skv, *band)
        np.testing.assert_array_equal(seen(sq, skv, mask=mask, bands=band), inside & ~hidden)


SEQUENCES = {
    "one": ([5], [7]),
    "length 1": ([1, 3, 1], [1, 4, 1]),
    "equal": ([3, 70, 5], [3, 70, 5]),
    "empty in the middle": ([2, 2, 0, 2, 2], [2, 2, 0, 2, 2]),
    "empty at both ends": ([0, 4, 3, 0], [0, 6, 5, 0]),
    "keys without queries": ([0, 4, 3, 0], [3, 6, 5, 2]),
    "long": ([70, 1, 66], [130, 2, 140]),
}


def seen_by_sequences(query_lengths, key_lengths, **arguments):
    tokens, keys = sum(query_lengths), sum(key_lengths)
    ends = {
        f"{side}_ends": paddle.to_tensor(np.cumsum(lengths), dtype="int64")
        for side, lengths in (("query", query_lengths), ("key", key_lengths))
    }
    return seen(tokens, keys, shape=lambda t: (t, 1, keys), layout="TND", **ends, **arguments)


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("align", ALIGN)
def test_bands_of_packed_sequences(align, name):
    lengths = SEQUENCES[name]
    own = [(-(i + 2), 2 - i, k // (i + 2)) for i, k in enumerate(lengths[1])]
    for bands in (own, [CAUSAL] * len(own), [(-2, 1, 0)] * len(own)):
        listed = bands if bands is own else bands[:1]
        keep = seen_by_sequences(*lengths, bands=np.ravel(listed).tolist(), align=align)
        blocks = [~enumerated(q, k, *band, align) for q, k, band in zip(*lengths, bands, strict=True)]
        expected = ~block_diagonal(blocks, *map(sum, lengths))
        np.testing.assert_array_equal(keep, expected, err_msg=str(listed))


def test_a_mask_is_shared_by_packed_sequences():
    hidden = np.random.default_rng(1).random((4, 6)) < 0.5
    hidden[:, 0] = False
    lengths = [4, 1, 3], [6, 2, 2]
    keep = seen_by_sequences(*lengths, mask=paddle.to_tensor(hidden))
    blocks = [hidden[:q, :k] for q, k in zip(*lengths, strict=True)]
    np.testing.assert_array_equal(keep, ~block_diagonal(blocks, 8, 10))


def test_every_batch_entry_has_its_prefix():
    case = attention.Case(3, 5, 9, 1, 1, 9, 9, high=0, align="bottom_right", prefix=[0, 9, 6])
    value = paddle.eye(9).reshape([1, 9, 1, 9]).expand([3, 9, 1, 9])
    zeros = paddle.zeros([3, 5, 1, 9]), paddle.zeros([3, 9, 1, 9])
    bands = np.ravel([(-FAR, 0, prefix) for prefix in case.prefix]).tolist()
    out = attend(*zeros, value, bands=bands, align="bottom_right")[0]
    np.testing.assert_array_equal(out.numpy()[:, :, 0] > 0, case.visible()[:, 0])
