"""Steps of FusedAdamW on parameters and states that are split, in this process, one of two ranks."""

from __future__ import annotations

import numpy as np
import paddle
import paddle.distributed as dist
import ranks

import paddle_fused
import virtual_npu
from llm_npu import patches
from llm_npu.parallel import gradients

STEPS, ROWS, INPUTS, OUTPUTS = 3, 4, 8, 6
STAGES = {0: None, 1: dist.ShardingStage1, 2: dist.ShardingStage2, 3: dist.ShardingStage3}


def layer(dtype: str) -> paddle.nn.Layer:
    paddle.seed(0)
    linear = paddle.nn.Linear(INPUTS, OUTPUTS)
    return linear.to(dtype=dtype)


def batch(step: int, dtype: str):
    return paddle.to_tensor(np.random.default_rng(step).standard_normal((ROWS, INPUTS))).astype(dtype)


def optimizer_of(parameters, amsgrad: bool):
    return paddle_fused.FusedAdamW(
        0.05, parameters=parameters, multi_precision=True, amsgrad=amsgrad, epsilon=1e-4
    )


def values(model) -> list[list[float]]:
    values_of = []
    for parameter in model.parameters():
        whole = dist.unshard_dtensor(parameter) if parameter.is_dist() else parameter
        values_of.append(whole.astype("float32").numpy().ravel().tolist())
    return values_of


def alone(dtype: str, amsgrad: bool) -> list[list[float]]:
    model = layer(dtype)
    optimizer = optimizer_of(model.parameters(), amsgrad)
    for step in range(STEPS):
        (model(batch(step, dtype)) ** 2).mean().backward()
        optimizer.step()
        optimizer.clear_grad()
    return values(model)


def split(dtype: str, amsgrad: bool, stage: int, columns: bool) -> dict:
    """``columns``: the weight is split by them; else the batch is, and the states by ``stage``."""
    mesh = dist.ProcessMesh([0, 1], dim_names=["dp"])
    model = layer(dtype)
    for name, dim in (("weight", 1), ("bias", 0)):
        placement = dist.Shard(dim) if columns else dist.Replicate()
        setattr(model, name, dist.shard_tensor(getattr(model, name), mesh, [placement]))
    sharding = STAGES[stage]
    optimizer = optimizer_of(model.parameters(), amsgrad)
    optimizer = dist.shard_optimizer(optimizer, sharding("dp", mesh) if sharding else None)
    paddle_fused.reset_dispatch_log()
    for step in range(STEPS):
        x = dist.shard_tensor(batch(step, dtype), mesh, [dist.Replicate() if columns else dist.Shard(0)])
        (model(x) ** 2).mean().backward()
        gradients.reduce(model)
        with (
            paddle_fused.use_backend("ascend", strict=True),
            virtual_npu.watch_host_fallbacks(lambda fallback: True),
        ):
            optimizer.step()
        optimizer.clear_grad()
    states = optimizer._inner_opt._accumulators["moment1"].values()
    return {
        "values": values(model),
        "ran": sorted({(entry.operator, entry.backend) for entry in paddle_fused.dispatch_log()}),
        "moments": sorted(str(state.placements[0]) for state in states),
    }


patches.apply()
dist.init_parallel_env()
results = {}
for dtype, amsgrad, stage, columns in (
    ("float32", False, 0, True),
    ("bfloat16", False, 0, True),
    *((dtype, False, stage, False) for dtype in ("float32", "bfloat16") for stage in STAGES),
    ("float32", True, 1, False),
):
    result = {"alone": alone(dtype, amsgrad), **split(dtype, amsgrad, stage, columns)}
    results[f"{dtype}, {'columns' if columns else f'stage {stage}'}{', amsgrad' if amsgrad else ''}"] = result
ranks.write(results)
