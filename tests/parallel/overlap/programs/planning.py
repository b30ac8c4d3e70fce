"""The planner on real ranks: the same choice everywhere, customised settings, what it reports."""

from __future__ import annotations

import paddle
import paddle.distributed as dist

from llm_npu.parallel import overlap
from llm_npu.parallel.overlap import Planner, Product

SHAPES = (
    Product("all_reduce", 64, 256, 256, "float32", 2),
    Product("all_reduce", 512, 256, 384, "bfloat16", 2, concurrent=True),
    Product("all_gather", 96, 256, 256, "bfloat16", 2),
    Product("all_gather", 64, 512, 384, "bfloat16", 2, transposed=True),
    Product("reduce_scatter", 200, 300, 256, "float32", 2, concurrent=True),
    Product("reduce_scatter", 2, 256, 256, "bfloat16", 2),
)


def examine(group) -> dict:
    reported = []
    planner = Planner(report=lambda plan: reported.append(str(plan)))
    plans = [planner.plan(_on(group, product), group) for product in SHAPES]
    again = [planner.plan(_on(group, product), group) for product in SHAPES]
    customised = Planner({"all_reduce": "serial", "all_gather:96x256x256": "pipelined:3"})
    return {
        "settings": [str(plan.setting) for plan in plans],
        "measured": [_by_name(plan.measured) for plan in plans],
        "gains": [plan.gain for plan in plans],
        "refused": [plan.refused for plan in plans],
        "kept": all(plan is other for plan, other in zip(plans, again, strict=True)),
        "reported": reported,
        "customised": [str(customised.setting(_on(group, product), group)) for product in SHAPES[:3]],
        "used": _used(group),
    }


def groups_that_share_a_rank() -> dict:
    """Ranks 0 and 1 use mc2: what is planned for 1 and 2, the first of which cannot use another group."""
    first, second = dist.new_group([0, 1]), dist.new_group([1, 2])
    product = Product("all_reduce", 64, 256, 256, "bfloat16", 2)
    if dist.get_rank() < 2:
        x, weight = paddle.ones([64, 256]).astype("bfloat16"), paddle.ones([256, 256]).astype("bfloat16")
        overlap.matmul_all_reduce(x, weight, first, "mc2")
    if dist.get_rank() == 0:
        return {}
    plan = Planner().plan(product, second)
    try:
        Planner({"all_reduce": "mc2"}).plan(product, second)
    except ValueError as error:
        return {"setting": str(plan.setting), "refused": plan.refused, "customised": str(error)}
    return {"customised": "no error"}


def _used(group) -> list[str]:
    """The plans that a call and its gradient made."""
    planner = Planner({"all_gather": "pipelined:2"})
    x, weight = paddle.ones([8, 256]), paddle.ones([256, 16])
    x.stop_gradient = weight.stop_gradient = False
    overlap.all_gather_matmul(x, weight, group, planner).sum().backward()
    return [f"{plan.product} {plan.setting.backend}" for plan in planner.plans][:1] + [
        plan.product.name for plan in planner.plans
    ]


def _by_name(times) -> dict[str, float]:
    return {str(setting): seconds for setting, seconds in times.items()}


def _on(group, product: Product) -> Product:
    return Product(
        product.kind,
        product.rows,
        product.depth,
        product.columns,
        product.dtype,
        group.nranks,
        product.concurrent,
        product.transposed,
    )
