"""flash_attention on tensors of a mesh: where the results lie if batch, heads or tokens are split."""

import numpy as np
import paddle.distributed as dist
import pytest
from attention_operator import tensors

import paddle_fused

pytestmark = pytest.mark.usefixtures("on_npu")

Q, K = (2, 6, 4, 8), (2, 9, 2, 8)
S, R, P = dist.Shard, dist.Replicate(), dist.Partial()
SPLITS = {
    # layout: query, key and value, out, statistics
    "BSND along the batch": ("BSND", S(0), S(0), S(0), S(0)),
    "BSND along the heads": ("BSND", S(2), S(2), S(2), S(1)),
    "BSND, query's heads only": ("BSND", S(2), R, S(2), S(1)),  # key and value are cut
    "BSND along the tokens": ("BSND", S(1), S(1), R, R),
    "BSND, query's batch only": ("BSND", S(0), R, S(0), S(0)),
    "BNSD along the heads": ("BNSD", S(1), S(1), S(1), S(1)),
    "BSH along the batch": ("BSH", S(0), S(0), S(0), S(0)),
    "BSH along the heads": ("BSH", S(2), S(2), R, R),
    "SBH along the batch": ("SBH", S(1), S(1), S(1), S(0)),
    "TND along the heads": ("TND", S(1), S(1), S(1), S(1)),
    "TND along the tokens": ("TND", S(0), S(0), R, R),
}
SHAPES = {
    "BSND": (Q, K),
    "BNSD": ((2, 4, 6, 8), (2, 2, 9, 8)),
    "BSH": ((2, 6, 32), (2, 9, 16)),
    "SBH": ((6, 2, 32), (9, 2, 16)),
    "TND": ((6, 4, 8), (9, 2, 8)),
}


def placed(x, placement):
    carried = dist.shard_tensor(x.detach(), dist.ProcessMesh([0], dim_names=["x"]), [placement])
    carried.stop_gradient = x.stop_gradient
    return carried


@pytest.mark.parametrize("name", SPLITS)
def test_batch_and_heads_may_be_split(name):
    """Placements on a mesh of one process, where every tensor is whole in truth."""
    layout, of_query, of_key, of_out, of_statistics = SPLITS[name]
    query, key = SHAPES[layout]
    whole = tensors(query, key, key)
    split = [placed(x, p) for x, p in zip(whole, (of_query, of_key, of_key), strict=True)]
    options = {"layout": layout, "return_softmax_stats": True}
    if layout in ("BSH", "SBH"):
        options["num_heads"] = 4
    if layout == "TND":
        options |= {"cu_seqlens_q": [0, 2, 6], "cu_seqlens_k": [0, 5, 9]}
    expected = paddle_fused.flash_attention(*whole, **options)
    outputs = paddle_fused.flash_attention(*split, **options)
    # Not paddle.grad: with a custom operator's DistTensors Paddle 3.3.1 crashes in it.
    outputs[0].sum().backward()
    assert [x.placements[0] for x in outputs] == [of_out, of_statistics, of_statistics]
    assert [x.grad.placements[0] for x in split] == [of_query, of_key, of_key]
    for a, b in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(dist.unshard_dtensor(a).numpy(), b.numpy())


@pytest.mark.parametrize(
    ("shape", "split", "placement"),
    [
        ((2, 4, 6, 9), S(0), R),  # the bias is cut, and its gradient put together
        ((1, 4, 6, 9), S(0), P),  # each process sums over its part of the batch
        ((2, 4, 6, 9), S(2), R),
    ],
)
def test_the_gradient_of_a_bias_that_is_whole(shape, split, placement):
    q, k, v = (placed(x, split) for x in tensors(Q, K, K))
    (bias,) = (placed(x, R) for x in tensors(shape))
    for x in (q, k, v, bias):
        x.stop_gradient = False
    paddle_fused.flash_attention(q, k, v, bias=bias).sum().backward()
    assert bias.grad.placements[0] == placement and bias.grad.shape == list(shape)
