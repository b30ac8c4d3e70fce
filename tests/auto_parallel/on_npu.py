"""Runs every row by the plugin's operators in this process, one of two ranks: see tests/ranks.py."""

from __future__ import annotations

import sys
from pathlib import Path

import paddle
import paddle.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import ranks

import paddle_fused
from auto_parallel.rows import all_rows
from auto_parallel.rows_run import examined
from llm_npu import compat
from paddle_fused.dispatch import OPERATORS
from paddle_fused.sharding import Layout, Rule, Sharding


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
    operator.sharding = Sharding(("x", "y"), lambda x, y: Rule({"x": dims, "y": dims}, (dims[::-1],)))
    x = dist.shard_tensor(paddle.ones([4, 256], "bfloat16"), mesh, [dist.Shard(0)])
    try:
        return refusal(lambda: paddle_fused.swiglu(x, x))
    finally:
        operator.sharding = right


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


compat.apply()
dist.init_parallel_env()
mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
found = {dtype: examined(all_rows(), mesh, "ascend", dtype) for dtype in ("bfloat16", "float32")}
planted = {"inputs": planted_inputs(mesh), "rule": planted_rule(mesh), "gradient": planted_gradient(mesh)}
ranks.write({**found, "planted": planted})
