"""Runs every row by the plugin's operators in this process, one of two ranks: see tests/shared/ranks.py."""

from __future__ import annotations

import paddle
import paddle.distributed as dist
import ranks

import paddle_fused
from auto_parallel.rows import all_rows
from auto_parallel.rows_run import examined
from llm_npu import patches
from paddle_fused import masks
from paddle_fused.dispatch import OPERATORS
from paddle_fused.sharding import Layout, Sharding, ShardingRule


def planted_inputs(mesh) -> str:
    """Heads of queries and the batch of keys are split by one axis."""
    query, key = (
        dist.shard_tensor(paddle.ones([2, 4, 4, 32], "bfloat16"), mesh, [dist.Shard(dim)]) for dim in (2, 0)
    )
    return refusal(lambda: paddle_fused.flash_attention(query, key, key))


def planted_rule(mesh) -> str:
    """A rule that says that a result is split along another dimension than it is."""
    operator = OPERATORS["swiglu"]
    right = operator.sharding
    dims = ("rows", "columns")
    operator.sharding = Sharding(("x", "y"), lambda x, y: ShardingRule({"x": dims, "y": dims}, (dims[::-1],)))
    x = dist.shard_tensor(paddle.ones([4, 256], "bfloat16"), mesh, [dist.Shard(0)])
    try:
        return refusal(lambda: paddle_fused.swiglu(x, x))
    finally:
        operator.sharding = right


def two_meshes(mesh) -> str:
    x = dist.shard_tensor(paddle.ones([4, 256], "bfloat16"), mesh, [dist.Shard(0)])
    turned = dist.ProcessMesh([1, 0], dim_names=["x"])
    y = dist.shard_tensor(paddle.ones([4, 256], "bfloat16"), turned, [dist.Shard(0)])
    return refusal(lambda: paddle_fused.swiglu(x, y))


def split_lengths(mesh) -> str:
    tokens = paddle.ones([8, 4, 32], "bfloat16")
    ends = dist.shard_tensor(paddle.to_tensor([0, 3, 8]), mesh, [dist.Replicate()])
    lengths = {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
    return refusal(lambda: paddle_fused.flash_attention(*[tokens] * 3, layout="TND", **lengths))


def split_mask(mesh) -> float:
    """How far attention with a distributed mask is from that with a local one, of local tensors."""
    paddle.seed(0)
    hidden = paddle.randn([2, 1, 8, 8]) > 1
    hidden[:, :, :, 0] = False
    tokens = paddle.randn([2, 8, 4, 32]).astype("bfloat16")
    mask = dist.shard_tensor(hidden, mesh, [dist.Shard(0)])
    out = [paddle_fused.flash_attention(*[tokens] * 3, masks.dense(array)) for array in (hidden, mask)]
    return float((values(out[0]) - values(out[1])).abs().max())


def values(tensor):
    whole = dist.unshard_dtensor(tensor) if tensor.is_dist() else tensor
    return whole.astype("float32")


def tied_weight(mesh) -> list[str]:
    """The batch and an output layer's vocabulary are split by one axis, as by sharding of stage 3."""
    hidden = dist.shard_tensor(paddle.ones([4, 8, 32], "bfloat16"), mesh, [dist.Shard(0)])
    weight = dist.shard_tensor(paddle.ones([16, 32], "bfloat16"), mesh, [dist.Shard(0)])
    labels = dist.shard_tensor(paddle.zeros([4, 8], "int64"), mesh, [dist.Shard(0)])
    hidden.stop_gradient = weight.stop_gradient = False
    paddle_fused.reset_dispatch_log()
    paddle_fused.linear_cross_entropy(
        hidden, weight, labels, transpose_weight=True, reduction="sum"
    ).backward()
    (ran,) = paddle_fused.dispatch_log()
    return [*ran.resharded, str(hidden.grad.placements[0]), str(weight.grad.placements[0])]


def positions_in_parts(mesh) -> list[int]:
    q = dist.shard_tensor(paddle.ones([2, 4, 4, 32], "bfloat16"), mesh, [dist.Shard(0)])
    table = paddle.ones([8, 32], "bfloat16")
    positions = dist.shard_tensor(paddle.arange(4).expand([2, 4]), mesh, [dist.Shard(0)])
    return paddle_fused.apply_rotary(q, q, table, table, positions)[0]._local_shape


def refusal(call) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def planted_gradient(mesh) -> dict:
    """What the rows of RMSNorm find where a weight's gradient is not said to be a term of a sum."""
    right = Layout.lacks
    Layout.lacks = lambda layout, *_tensor: (False,) * len(layout.axes)
    try:
        return examined([row for row in all_rows() if row.operator == "rms_norm"], mesh, "ascend", "float32")
    finally:
        Layout.lacks = right


patches.apply()
dist.init_parallel_env()
mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
rows = {dtype: examined(all_rows(), mesh, "ascend", dtype) for dtype in ("bfloat16", "float32")}
planted = {"inputs": planted_inputs(mesh), "rule": planted_rule(mesh), "gradient": planted_gradient(mesh)}
others = [two_meshes, split_lengths, split_mask, tied_weight, positions_in_parts]
ranks.write({**rows, "planted": planted, **{other.__name__: other(mesh) for other in others}})
