"""``pf_flash_attention`` on DistTensors: what its rules say of batch, heads and tokens that are split."""

import numpy as np
import paddle.distributed as dist
import pytest
from attention_operator import attend, lengths, tensors

pytestmark = pytest.mark.usefixtures("on_npu")

Q, K = (2, 6, 4, 8), (2, 9, 2, 8)
S, R, P = dist.Shard, dist.Replicate(), dist.Partial()
SPLITS = {
    # layout: query, key and value, out and its gradient, statistics
    "BSND along the batch": ("BSND", S(0), S(0), S(0), S(0)),
    "BSND along the heads": ("BSND", S(2), S(2), S(2), S(1)),
    "BSND, query's heads only": ("BSND", S(2), R, R, R),
    "BSND along the tokens": ("BSND", S(1), S(1), R, R),
    "BSND, query's batch only": ("BSND", S(0), R, S(0), S(0)),
    "BNSD along the heads": ("BNSD", S(1), S(1), S(1), S(1)),
    "BSH along the batch": ("BSH", S(0), S(0), S(0), S(0)),
    "BSH along the heads": ("BSH", S(2), S(2), R, R),
    "SBH along the batch": ("SBH", S(1), S(1), S(1), S(0)),
    "TND along the heads": ("TND", S(1), S(1), S(1), S(1)),
    "TND along the tokens": ("TND", S(0), S(0), R, R),
}


@pytest.mark.parametrize("name", SPLITS)
def test_batch_and_heads_may_be_split(name):
    """Placements on a mesh of one process, where every tensor is whole in truth."""
    layout, of_query, of_key, of_out, of_statistics = SPLITS[name]
    mesh = dist.ProcessMesh([0], dim_names=["x"])
    shapes = {
        "BSND": ((2, 6, 4, 8), (2, 9, 2, 8)),
        "BNSD": ((2, 4, 6, 8), (2, 2, 9, 8)),
        "BSH": ((2, 6, 32), (2, 9, 16)),
        "SBH": ((6, 2, 32), (9, 2, 16)),
        "TND": ((6, 4, 8), (9, 2, 8)),
    }[layout]
    whole = tensors(shapes[0], shapes[1], shapes[1])

    def placed(x, placement):
        carried = dist.shard_tensor(x.detach(), mesh, [placement])
        carried.stop_gradient = x.stop_gradient
        return carried

    split = [placed(x, p) for x, p in zip(whole, (of_query, of_key, of_key), strict=True)]
    arguments = {"layout": layout, "num_heads": 4 if layout[-1] == "H" else 0, "scale": 0.3, "mode": 2}
    ends = {"query_ends": lengths(2, 6), "key_ends": lengths(5, 9)} if layout == "TND" else {}
    expected = attend(*whole, **arguments, **ends)
    outputs = attend(*split, **arguments, **{name: placed(x, R) for name, x in ends.items()})
    outputs[
        0
    ].sum().backward()  # not paddle.grad: with a custom operator's DistTensors Paddle 3.3.1 crashes in it
    assert [x.placements[0] for x in outputs] == [of_out, of_statistics, of_statistics, R]
    assert [x.grad.placements[0] for x in split] == [of_out] * 3
    for a, b in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(dist.unshard_dtensor(a).numpy(), b.numpy())


@pytest.mark.parametrize(
    ("shape", "split", "placement"),
    [
        ((2, 4, 6, 9), S(0), S(0)),
        ((1, 4, 6, 9), S(0), P),  # each process sums over its part of the batch
        ((2, 4, 6, 9), S(2), S(1)),
        ((2, 1, 6, 9), S(2), P),
    ],
)
def test_the_gradient_of_a_split_bias(shape, split, placement):
    mesh = dist.ProcessMesh([0], dim_names=["x"])
    q, k, v = (dist.shard_tensor(x, mesh, [split]) for x in tensors(Q, K, K))
    bias = dist.shard_tensor(*tensors(shape), mesh, [R])
    for x in (q, k, v, bias):
        x.stop_gradient = False
    attend(q, k, v, bias=bias, scale=0.3)[0].sum().backward()
    assert bias.grad.placements[0] == placement and bias.grad.shape == list(shape)
