"""The inputs of ``pf_flash_attention``: missing ones, gradients of other shapes, seeds, huge scores."""

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from attention_operator import attend

from paddle_fused import flash_attention, native

pytestmark = pytest.mark.sampled


def qkv(device="cpu"):
    paddle.set_device(device)
    random = np.random.default_rng(0)
    tensors = [paddle.to_tensor(random.standard_normal((2, s, 4, 8)), "float32") for s in (6, 9, 9)]
    for x in tensors:
        x.stop_gradient = False
    return tensors


@pytest.mark.parametrize("shape", [[1], [], [2, 6, 4], [2, 6, 4, 4], [2, 9, 4, 8], [2, 6, 8, 4]], ids=str)
def test_a_gradient_of_another_shape_is_refused(shape):
    q, k, v = qkv()
    out = attend(q, k, v)[0]
    with pytest.raises(ValueError, match=r"gradient of out has shape .*; accepted: \[2, 6, 4, 8\]"):
        paddle.grad([out], [q], [paddle.ones(shape)])


def test_a_gradient_on_another_device_is_refused():
    q, k, v = qkv(device="npu:0")
    out = attend(q, k, v)[0]
    with pytest.raises(ValueError, match=r"query is on npu:0, .* out is on cpu"):
        paddle.grad([out], [q], [paddle.ones(out.shape).cpu()])


@pytest.mark.parametrize("missing", ["query", "key", "value"])
def test_a_missing_tensor_is_named(missing):
    tensors = dict(zip(("query", "key", "value"), qkv(), strict=True)) | {missing: None}
    assert native.unsupported_reason(*tensors.values()) is None
    with pytest.raises(ValueError, match=f"pf_flash_attention: {missing} is missing"):
        paddle._C_ops._run_custom_op(
            "pf_flash_attention", *tensors.values(), *[None] * 5, "BSND", 0, 1.0, 0.0, [-9, 9, 0], "top_left"
        )


def test_no_sequence_is_refused():
    q, k, v = (x[0] for x in qkv())
    ends = paddle.zeros([0], "int64")
    with pytest.raises(ValueError, match=r"query_ends and key_ends, .* one sequence"):
        attend(q, k, v, layout="TND", query_ends=ends, key_ends=ends)


def attend_with_seed(seed, dropout=0.5):
    return native.call(
        "pf_flash_attention",
        *(*qkv(), None, None, None, None, seed),
        *("BSND", 0, 1.0, dropout, [-99, 99, 0], "top_left"),
    )


def test_dropout_is_a_function_of_the_seed():
    seeds = [paddle.to_tensor(seed, "int64") for seed in ([3, 4], [3, 4], [3, 5], [4, 4])]
    first, same, *others = (attend_with_seed(seed) for seed in seeds)
    assert (first[0] == same[0]).all() and first[3].tolist() == [3, 4]
    assert all((first[0] != other[0]).any() for other in others)
    paddle.set_device("npu:0")
    assert (attend_with_seed(seeds[0].to("npu:0"))[0] == first[0]).all()


@pytest.mark.parametrize(
    "seed, message",
    [
        (None, "dropout is 0.5.*, which requires seed"),
        ([1], r"seed is int64 of shape \[1\]; accepted: int64 of shape \[2\]"),
        ([[1, 2]], r"seed is int64 of shape \[1, 2\]"),
        ([1.0, 2.0], "seed is float32 of shape"),
    ],
    ids=str,
)
def test_other_seeds_are_refused(seed, message):
    seed = None if seed is None else paddle.to_tensor(seed)
    with pytest.raises(ValueError, match=f"pf_flash_attention: {message}"):
        attend_with_seed(seed)


def test_dropout_on_a_mesh_draws_a_seed_for_all():
    mesh = dist.ProcessMesh([0], dim_names=["x"])
    whole = qkv()
    split = [dist.shard_tensor(x.detach(), mesh, [dist.Shard(0)]) for x in whole]
    outs = []
    for tensors in (whole, split):
        paddle.seed(1)
        outs.append(flash_attention(*tensors, dropout=0.5))
    assert outs[1].placements == [dist.Shard(0)]
    assert (dist.unshard_dtensor(outs[1]) == outs[0]).all()


def test_scores_below_those_of_hidden_keys_still_count():
    """If all scores are that far below zero, the keys are averaged; if one is not, it is selected."""
    q, k, v = qkv()
    huge, tiny = paddle.full([2, 6, 4, 8], 1e19), paddle.full([2, 9, 4, 8], -1e19)
    out, _, softmax_sum, _ = attend(huge, tiny * 3, v, scale=1.0)
    assert (softmax_sum == 9).all()
    np.testing.assert_allclose(out, v.mean(1, keepdim=True).expand_as(out), atol=1e-6)
    tiny[:, 4] = 0
    assert (attend(huge, tiny, v, scale=1.0)[0] == v[:, 4:5]).all()
    assert attend(q * np.nan, k, v)[0].isnan().all()
