"""The backend ``mc2``: fused operators of a card's plugin or of the virtual NPU. Shapes as in serial.py.

The operators overlap internally, and the calling stream waits for the whole operator. If a weight gradient
can be computed during a collective, the matmul therefore runs unfused and its collective on the communication
stream, as in PaddleNLP's layers. Otherwise the fused operators are used.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import paddle
import paddle.distributed as dist

import virtual_npu
from llm_npu.cann import chip
from llm_npu.core import ranks
from paddle_fused import contracts
from paddle_fused.cann_installation import find_cann, is_before

from . import pipelined
from .product import ALL_REDUCE, GATHER, REDUCE_SCATTER, Product

OPERATORS = {
    ALL_REDUCE: "fused_mm_allreduce",
    GATHER: "fused_allgather_mm",
    REDUCE_SCATTER: "fused_mm_reduce_scatter",
}
WORLD_SIZES = (2, 4, 8)
WORLD_SIZES_910C = (*WORLD_SIZES, 16, 32)

_domain: str | None = None  # the communication domain of these operators in this process


def reason(product: Product, group) -> str | None:
    """Why the fused operator of ``product`` cannot run, without a full stop; None if it can.

    May be called before any rank calls the operator. With ``product.concurrent`` the operator does not run
    (see above), so only the dtype matters. Ranks that used these operators in another group may return
    different reasons.
    """
    operator = OPERATORS[product.kind]
    if not paddle.get_device().startswith("npu"):
        return f"{operator} is an operator of the npu, and the device is {paddle.get_device()}"
    module = _module()
    if not hasattr(module, operator):
        return f"the installed plugin has no operator {operator}"
    if product.dtype not in contracts.dtypes("mc2.dtype"):
        return contracts.reason("mc2.dtype", operator, f"x1 is {product.dtype}")
    if product.concurrent:
        return None
    if product.kind != ALL_REDUCE and is_910c() and (old := too_old_for_910c()):
        return f"{operator}: CANN has it for the 910C from {chip.chips()['A3'].mc2} on, not in {old}"
    if product.kind == ALL_REDUCE:
        if is_910c():
            return f"{operator}: CANN has no aclnnMatmulAllReduce for the 910C"
        if max(product.rows, product.depth, product.columns) > contracts.limit("mc2.all_reduce_size"):
            return contracts.reason("mc2.all_reduce_sizes", operator, f"the product is {product}")
    elif not contracts.limit("mc2.depth") <= product.depth < contracts.limit("mc2.depth_below"):
        return contracts.reason("mc2.depth", operator, f"k is {product.depth}")
    if product.ranks not in (WORLD_SIZES_910C if is_910c() else WORLD_SIZES):
        return contracts.reason("mc2.world_size", operator, f"there are {product.ranks} ranks")
    if _domain is not None and _domain != name_of(group):
        return contracts.reason(
            "mc2.domain", operator, f"{_domain} is in use and {name_of(group)} was requested"
        )
    return None


def is_910c() -> bool:
    """Whether the cards are 910Cs, emulated ones included."""
    if virtual_npu.is_active():
        return virtual_npu.card() == "910c"
    family = _family_of_cards()
    return family is not None and family.name == "A3"


@functools.cache
def _family_of_cards() -> chip.Chip | None:
    return chip.of_machine(os.environ, Path("/"))


def too_old_for_910c() -> str:
    """The version of CANN if it has no products fused with collectives for the 910C; otherwise ""."""
    if virtual_npu.is_active():
        version = virtual_npu.cann_level()
    else:
        cann = find_cann(os.environ, Path("/"))
        version = (cann and cann.version) or ""
    return version if is_before(version, chip.chips()["A3"].mc2) else ""


def reason_of_any(product: Product, group) -> str | None:
    """The ``reason`` of the first rank of ``group`` with one. Collective; every rank must call it."""
    return next(filter(None, ranks.gathered(reason(product, group), group)), None)


def all_reduce(left, weight, transpose: bool, group, concurrent=None, chunks: int = 1):
    if concurrent:
        return pipelined.all_reduce(left, weight, transpose, group, concurrent, chunks=1)
    hcom = claim(group)
    right = weight.t() if transpose else weight
    return _module().fused_mm_allreduce(left, right, bias=None, hcom=hcom, reduce_op="sum", comm_turn=0), None


def reduce_scatter(left, weight, transpose: bool, group, concurrent=None, chunks: int = 1):
    if concurrent:
        return pipelined.reduce_scatter(left, weight, transpose, group, concurrent, chunks=1)
    hcom = claim(group)
    result = _module().fused_mm_reduce_scatter(
        left,
        weight.t() if transpose else weight,
        bias=None,
        hcom=hcom,
        world_size=group.nranks,
        reduce_op="sum",
        comm_turn=0,
    )
    return result, None


def gather(left, weight, transpose: bool, group, keep: bool, chunks: int = 1):
    result, gathered = _module().fused_allgather_mm(
        left,
        weight.t() if transpose else weight,
        bias=None,
        hcom=claim(group),
        world_size=group.nranks,
        gather_index=0,
        gather_output=keep,
        comm_turn=0,
    )
    return result, gathered if keep else None


def name_of(group) -> str:
    """The name of the group's communication domain: ``hcom`` of the operators."""
    return group.process_group.get_comm_name(dist.get_rank())


def claim(group) -> str:
    """Make these operators use the group's communication domain from now on; returns its name.

    The operators fix their domain at the first call, which includes a planner's trial.
    """
    global _domain
    _domain = name_of(group)
    return _domain


def _module():
    import paddle_custom_device  # from paddle-custom-npu, or provided by the virtual NPU

    return paddle_custom_device.npu
