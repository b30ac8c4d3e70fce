"""``flash_attention`` on distributed tensors: which dimensions stay sharded, and the placements of gradients.

The mesh has one process, where every part is the whole: what is computed cannot depend on the split.
"""

import numpy as np
import paddle.distributed as dist
import pytest
from attention_operator import tensors

from paddle_fused import flash_attention, masks

pytestmark = [pytest.mark.usefixtures("on_npu"), pytest.mark.sampled]

S, R, P = dist.Shard, dist.Replicate(), dist.Partial()
SHAPES = {
    # layout: query, key and value
    "BSND": ((2, 6, 4, 8), (2, 9, 2, 8)),
    "BNSD": ((2, 4, 6, 8), (2, 2, 9, 8)),
    "BSH": ((2, 6, 32), (2, 9, 16)),
    "SBH": ((6, 2, 32), (9, 2, 16)),
    "TND": ((6, 4, 8), (9, 2, 8)),
}
SPLITS = {
    # layout: query, key and value, out, statistics
    "BSND along the batch": ("BSND", S(0), S(0), S(0), S(0)),
    "BSND along the heads": ("BSND", S(2), S(2), S(2), S(1)),
    # What is there as a whole is cut to follow what is split; nothing has to be sent for it.
    "BSND, query's heads only": ("BSND", S(2), R, S(2), S(1)),
    "BSND, key's heads only": ("BSND", R, S(2), S(2), S(1)),
    "BSND, query's batch only": ("BSND", S(0), R, S(0), S(0)),
    "BSND along the tokens": ("BSND", S(1), S(1), R, R),
    "BSND along the head size": ("BSND", S(3), S(3), R, R),
    "BNSD along the heads": ("BNSD", S(1), S(1), S(1), S(1)),
    "BSH along the batch": ("BSH", S(0), S(0), S(0), S(0)),
    "BSH along the heads": ("BSH", S(2), S(2), R, R),
    "SBH along the batch": ("SBH", S(1), S(1), S(1), S(0)),
    "TND along the heads": ("TND", S(1), S(1), S(1), S(1)),
    "TND along the tokens": ("TND", S(0), S(0), R, R),
}


def split(x, *placements):
    """``x`` as a leaf on a mesh of one process with an axis for each placement."""
    mesh = dist.ProcessMesh(
        np.zeros([1] * len(placements), int), [f"axis {i}" for i in range(len(placements))]
    )
    carried = dist.shard_tensor(x.detach(), mesh, list(placements))
    carried.stop_gradient = False
    return carried


def attend(layout: str, query, key, value):
    """(out, softmax_max, softmax_sum); gradients flow back from out."""
    arguments = {"num_heads": 4} if layout[-1] == "H" else {}
    if layout == "TND":
        arguments = {"cu_seqlens_q": [0, 2, 6], "cu_seqlens_k": [0, 5, 9]}
    results = flash_attention(
        query, key, value, masks.causal(), layout=layout, return_softmax_stats=True, **arguments
    )
    results[0].square().sum().backward()
    return results


@pytest.mark.parametrize("name", SPLITS)
def test_batch_and_heads_may_be_split(name):
    layout, of_query, of_key, of_out, of_statistics = SPLITS[name]
    of_query_shape, of_key_shape = SHAPES[layout]
    whole = tensors(of_query_shape, of_key_shape, of_key_shape)
    parts = [split(x, placement) for x, placement in zip(whole, (of_query, of_key, of_key), strict=True)]
    for x in whole:
        x.stop_gradient = False
    expected, results = attend(layout, *whole), attend(layout, *parts)
    assert [x.placements[0] for x in results] == [of_out, of_statistics, of_statistics]
    # Each gradient lies as its tensor does, wherever the tensor was brought before.
    assert [x.grad.placements[0] for x in parts] == [of_query, of_key, of_key]
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_array_equal(dist.unshard_dtensor(a).numpy(), b.numpy())
    for a, b in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(dist.unshard_dtensor(a.grad).numpy(), b.grad.numpy())


def test_one_key_head_serves_the_query_heads_of_all_processes():
    query, key, value = tensors((2, 6, 4, 8), (2, 9, 1, 8), (2, 9, 1, 8))
    query, key, value = split(query, S(2)), split(key, R), split(value, R)
    out, *_ = attend("BSND", query, key, value)
    assert out.placements == [S(2)]
    assert [x.grad.placements for x in (query, key, value)] == [[S(2)], [P], [P]]


def test_two_axes_split_two_dimensions():
    query, key, value = (split(x, S(0), S(2)) for x in tensors(*(SHAPES["BSND"][i] for i in (0, 1, 1))))
    out, softmax_max, _ = attend("BSND", query, key, value)
    assert out.placements == [S(0), S(2)] and softmax_max.placements == [S(0), S(1)]


def test_one_axis_cannot_split_two_dimensions():
    query, key, value = tensors(*(SHAPES["BSND"][i] for i in (0, 1, 1)))
    with pytest.raises(ValueError, match=r"'axis 0' .*heads of query.* batch of key"):
        flash_attention(split(query, S(2)), split(key, S(0)), split(value, S(0)))


@pytest.mark.parametrize(
    ("shape", "of_tokens", "of_bias", "of_gradient"),
    [
        ((2, 4, 6, 9), S(0), R, R),
        ((2, 4, 6, 9), S(2), R, R),
        ((2, 4, 6, 9), S(0), S(0), S(0)),
        ((2, 4, 6, 9), S(2), S(1), S(1)),
        ((1, 4, 6, 9), S(2), S(1), S(1)),
        ((2, 4, 1, 9), S(2), S(1), S(1)),
        ((1, 4, 6, 9), S(0), R, P),  # each process sums over its part of the batch
    ],
)
def test_the_gradient_of_a_split_bias(shape, of_tokens, of_bias, of_gradient):
    whole = tensors(*(SHAPES["BSND"][i] for i in (0, 1, 1)), shape)
    query, key, value = (split(x, of_tokens) for x in whole[:3])
    bias = split(whole[3], of_bias)
    for x in whole:
        x.stop_gradient = False
    flash_attention(*whole[:3], bias=whole[3]).square().sum().backward()
    flash_attention(query, key, value, bias=bias).square().sum().backward()
    assert bias.grad.placements[0] == of_gradient
    np.testing.assert_array_equal(dist.unshard_dtensor(bias.grad).numpy(), whole[3].grad.numpy())
