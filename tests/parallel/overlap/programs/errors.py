"""Calls that are refused, with what they answer."""

from __future__ import annotations

import paddle
import paddle.distributed as dist

from llm_npu.parallel import overlap


def examine(group) -> dict[str, str]:
    import paddle_custom_device

    npu = paddle_custom_device.npu
    hcom = group.process_group.get_comm_name(dist.get_rank())
    others = dist.new_group(list(range(dist.get_world_size())))
    another = others.process_group.get_comm_name(dist.get_rank())
    x, weight = paddle.ones([4, 256]).astype("bfloat16"), paddle.ones([256, 256]).astype("bfloat16")
    wide = x.astype("float32")
    ranks = group.nranks
    calls = {
        "operator, float32": lambda: npu.fused_mm_allreduce(wide, weight, None, hcom, "sum", 0),
        "operator, other world size": lambda: npu.fused_allgather_mm(
            x, weight, None, hcom, 4 if ranks == 2 else 2, 0, True, 0
        ),
        "operator, second domain": lambda: npu.fused_mm_allreduce(x, weight, None, another, "sum", 0),
        "operator, unknown domain": lambda: npu.fused_mm_allreduce(x, weight, None, "nowhere", "sum", 0),
        "float32": lambda: overlap.matmul_all_reduce(wide, weight.astype("float32"), group, "mc2"),
        "second domain": lambda: overlap.matmul_all_reduce(x, weight, others, "mc2"),
        "k": lambda: overlap.all_gather_matmul(x[:, :255], weight[:255], group, "mc2"),
        "k of the gradient": lambda: overlap.matmul_reduce_scatter(_trained(x), weight[:, :9], group, "mc2"),
        "dtypes": lambda: overlap.replicated_matmul(x, weight.astype("float32"), group),
        "shapes": lambda: overlap.replicated_matmul(x, weight[:9], group),
        "rows": lambda: overlap.matmul_reduce_scatter(x[:3], weight, group),
        "backend": lambda: overlap.matmul_all_reduce(x, weight, group, "fused"),
        "chunks": lambda: overlap.matmul_all_reduce(x, weight, group, "pipelined"),
        "too many chunks": lambda: overlap.matmul_all_reduce(x, weight, group, "pipelined:1000"),
        "customised shape": lambda: overlap.Planner({"all_reduce:9": "serial"}),
        "customised setting": lambda: overlap.Planner({"all_reduce": "fast"}),
    }
    npu.fused_mm_allreduce(x, weight, None, hcom, "sum", 0)  # the process has its domain now
    return {name: _message(call) for name, call in calls.items()}


def _trained(x):
    x = x.clone()
    x.stop_gradient = False
    return x


def _message(call) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "no error"
