"""Matmuls fused with a collective, forward and backward, that overlap compute and communication.

    matmul_all_reduce(x, weight)       the sum over the ranks of x weight        (a row-parallel layer)
    replicated_matmul(x, weight)       x weight with the same x on every rank; the gradient of x is summed
                                       over the ranks                            (a column-parallel layer)
    all_gather_matmul(x, weight)       (x of all ranks, concatenated) weight     (column, sequence parallel)
    matmul_reduce_scatter(x, weight)   this rank's rows of the sum of x weight   (row, sequence parallel)

Shapes: x [..., depth], weight [depth, columns]; the first dimension of x is gathered or scattered. All ranks
of the group must call with the same shapes, in the same order.
"""

from __future__ import annotations

import paddle
import paddle.distributed as dist

from llm_npu.core import auto_cast
from llm_npu.core.errors import UserError
from paddle_fused.ops.layer import OperatorLayer

from . import backends, mc2
from .pending_collectives import PendingCollectives
from .planner import AUTO, Planner, default_planner
from .product import ALL_REDUCE, GATHER, MC2, REDUCE_SCATTER, SERIAL, Product, Setting


def matmul_all_reduce(x, weight, group=None, overlap: str | Setting | Planner = AUTO):
    """sum over the ranks of x weight; the output's gradient is the same on every rank.

    Args:
        group: a group of paddle.distributed; None for all processes.
        overlap: ``auto`` for the planner's choice for this shape; a backend, ``serial``, ``mc2`` or
            ``pipelined:CHUNKS``; or a Planner with its own timings and customised settings.

    Raises:
        ValueError: for mismatched shapes or dtypes, and for ``mc2`` if its operators do not support the call.
    """
    x, weight, group, chooser = _checked("matmul_all_reduce", x, weight, group, overlap)
    _check_mc2(chooser, group, x, weight, forward=ALL_REDUCE)
    return _shaped(_MatmulAllReduce.apply(_flat(x), weight, group, chooser), x.shape[:-1], weight)


def replicated_matmul(x, weight, group=None, overlap: str | Setting | Planner = AUTO):
    """x weight; the all-reduce of x's gradient overlaps the weight gradient. Arguments as above."""
    x, weight, group, chooser = _checked("replicated_matmul", x, weight, group, overlap)
    _check_mc2(chooser, group, x, weight, backward=ALL_REDUCE)
    return _shaped(_ReplicatedMatmul.apply(_flat(x), weight, group, chooser), x.shape[:-1], weight)


def all_gather_matmul(
    x, weight, group=None, overlap: str | Setting | Planner = AUTO, recompute_gather: bool = False
):
    """(x of all ranks along the first dimension) weight. Arguments as above.

    Args:
        recompute_gather: gather x again for the gradient of weight, during the gradient of x, instead of
            saving the gathered x.
    """
    x, weight, group, chooser = _checked("all_gather_matmul", x, weight, group, overlap)
    _check_mc2(chooser, group, x, weight, forward=GATHER, backward=REDUCE_SCATTER)
    product = _AllGatherMatmul.apply(_flat(x), weight, group, chooser, bool(recompute_gather))
    return _shaped(product, [x.shape[0] * group.nranks, *x.shape[1:-1]], weight)


def matmul_reduce_scatter(x, weight, group=None, overlap: str | Setting | Planner = AUTO):
    """This rank's rows (first dimension) of the sum over the ranks of x weight.

    Arguments as above; the number of ranks must divide the first dimension.
    """
    x, weight, group, chooser = _checked("matmul_reduce_scatter", x, weight, group, overlap)
    if x.shape[0] % group.nranks:
        raise UserError(
            f"matmul_reduce_scatter: x has shape {list(x.shape)} and the group {group.nranks} ranks; "
            "accepted: a first dimension that is a multiple of the ranks. Pad it."
        )
    _check_mc2(chooser, group, x, weight, forward=REDUCE_SCATTER, backward=GATHER)
    product = _MatmulReduceScatter.apply(_flat(x), weight, group, chooser)
    return _shaped(product, [x.shape[0] // group.nranks, *x.shape[1:-1]], weight)


class _MatmulAllReduce(OperatorLayer):
    operator = "matmul_all_reduce"

    @staticmethod
    def forward(ctx, x, weight, group, chooser):
        _keep(ctx, x, weight)
        return _reduced(ALL_REDUCE, x, weight, False, group, chooser)[0]

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensor()
        return (
            paddle.matmul(gradient, weight, transpose_y=True) if ctx.wants_x else None,
            paddle.matmul(x, gradient, transpose_x=True) if ctx.wants_weight else None,
        )


class _ReplicatedMatmul(OperatorLayer):
    operator = "replicated_matmul"

    @staticmethod
    def forward(ctx, x, weight, group, chooser):
        _keep(ctx, x, weight, group, chooser)
        return paddle.matmul(x, weight)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensor()
        return _input_and_weight(ALL_REDUCE, x, weight, gradient, ctx, lambda: x)


class _AllGatherMatmul(OperatorLayer):
    operator = "all_gather_matmul"

    @staticmethod
    def forward(ctx, x, weight, group, chooser, recompute_gather):
        keep = not (weight.stop_gradient or recompute_gather)
        product, gathered = _gathered(x, weight, False, group, chooser, keep)
        _keep(ctx, x, weight, group, chooser, *([gathered] if keep else []))
        return product

    @staticmethod
    def backward(ctx, gradient):
        x, weight, *kept = ctx.saved_tensor()
        if kept or not ctx.wants_weight:
            return _input_and_weight(REDUCE_SCATTER, x, weight, gradient, ctx, lambda: kept[0])
        with PendingCollectives(ctx.group) as pending:
            again = pending.all_gather(x)
            if isinstance(ctx.chooser, Setting) and ctx.chooser.backend == SERIAL:
                again.wait()
            return _input_and_weight(REDUCE_SCATTER, x, weight, gradient, ctx, again.wait)


class _MatmulReduceScatter(OperatorLayer):
    operator = "matmul_reduce_scatter"

    @staticmethod
    def forward(ctx, x, weight, group, chooser):
        _keep(ctx, x, weight, group, chooser)
        return _reduced(REDUCE_SCATTER, x, weight, False, group, chooser)[0]

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensor()
        if not ctx.wants_x:
            with PendingCollectives(ctx.group) as pending:
                gathered = pending.all_gather(gradient).wait() if gradient.shape[0] else gradient
            return None, paddle.matmul(x, gathered, transpose_x=True)
        keep = ctx.wants_weight
        gradient_of_x, gathered = _gathered(gradient, weight, True, ctx.group, ctx.chooser, keep)
        return gradient_of_x, paddle.matmul(x, gathered, transpose_x=True) if keep else None


def _keep(ctx, x, weight, group=None, chooser=None, *others) -> None:
    ctx.save_for_backward(x, weight, *others)
    ctx.group, ctx.chooser = group, chooser
    ctx.wants_x, ctx.wants_weight = not x.stop_gradient, not weight.stop_gradient


def _input_and_weight(kind: str, x, weight, gradient, ctx, left) -> tuple:
    """(gradient of x, gradient of weight); the second is computed while the first is communicated.

    ``left()`` returns the left factor of the forward matmul.
    """

    def of_weight():
        return paddle.matmul(left(), gradient, transpose_x=True)

    if not ctx.wants_x:
        return None, of_weight()
    concurrent = of_weight if ctx.wants_weight else None
    return _reduced(kind, gradient, weight, True, ctx.group, ctx.chooser, concurrent)


def _reduced(kind: str, left, weight, transpose: bool, group, chooser, concurrent=None) -> tuple:
    """(left weight, summed over the ranks and scattered depending on ``kind``; concurrent())"""
    columns = weight.shape[0 if transpose else 1]
    if left.shape[0] * columns == 0:  # no communication
        rows = left.shape[0] // (group.nranks if kind == REDUCE_SCATTER else 1)
        return paddle.zeros([rows, columns], left.dtype), concurrent() if concurrent else None
    setting = _setting(kind, left, columns, group, chooser, concurrent is not None, transpose)
    return backends.reduce(kind, setting, left, weight, transpose, group, concurrent)


def _gathered(left, weight, transpose: bool, group, chooser, keep: bool) -> tuple:
    """(left of all ranks times weight, left of all ranks if ``keep`` else None)"""
    columns = weight.shape[0 if transpose else 1]
    if left.shape[0] == 0:
        return paddle.zeros([0, columns], left.dtype), left if keep else None
    setting = _setting(GATHER, left, columns, group, chooser, False, transpose)
    return backends.gather(setting, left, weight, transpose, group, keep)


def _setting(kind: str, left, columns: int, group, chooser, concurrent: bool, transposed: bool) -> Setting:
    if not isinstance(chooser, Planner):
        return chooser
    sizes = (*left.shape, columns, _name(left.dtype), group.nranks)
    return chooser.setting(Product(kind, *sizes, concurrent, transposed), group)


def _check_mc2(chooser, group, x, weight, forward: str | None = None, backward: str | None = None) -> None:
    """Raises ValueError with the operator's reason if either pass cannot run, before the first one starts."""
    if not isinstance(chooser, Setting) or chooser.backend != MC2:
        return
    rows, (depth, columns), ranks = x.size // x.shape[-1], weight.shape, group.nranks
    products = []
    if forward:
        products.append(Product(forward, rows, depth, columns, _name(x.dtype), ranks))
    if backward and not x.stop_gradient:
        rows = {GATHER: rows // ranks, REDUCE_SCATTER: rows * ranks}.get(backward, rows)
        concurrent = backward != GATHER and not weight.stop_gradient
        products.append(Product(backward, rows, columns, depth, _name(x.dtype), ranks, concurrent))
    for product in products:
        if refused := mc2.reason(product, group):
            raise UserError(f"{refused}")


def _checked(name: str, x, weight, group, overlap) -> tuple:
    """x and weight after automatic mixed precision, the group, and the setting or planner."""
    if not paddle.in_dynamic_mode():
        raise UserError(f"{name}: a program is being captured; accepted: dygraph. Keep the upstream layer.")
    group = dist.get_group(0) if group is None else group
    if group is None or group.process_group is None:
        raise UserError(f"{name}: there is no process group; call paddle.distributed.init_parallel_env()")
    if x.ndim < 2 or weight.ndim != 2 or x.shape[-1] != weight.shape[0]:
        raise UserError(
            f"{name}: x has shape {list(x.shape)} and weight {list(weight.shape)}; accepted: x [..., depth] "
            "with at least two dimensions and weight [depth, columns]"
        )
    x, weight = auto_cast.cast_inputs(x, weight)
    if x.dtype != weight.dtype:
        raise UserError(
            f"{name}: x is {x.dtype} and weight {weight.dtype}; accepted: one dtype for both. Cast one of "
            "them, or use paddle.amp.auto_cast."
        )
    if isinstance(overlap, Planner):
        return x, weight, group, overlap
    return x, weight, group, default_planner() if overlap == AUTO else Setting.of(overlap)


def _name(dtype) -> str:
    return str(dtype).rpartition(".")[2]


def _flat(x):
    return x if x.ndim == 2 else x.reshape([-1, x.shape[-1]])


def _shaped(product, before: list[int], weight):
    """The product with the leading dimensions of x restored."""
    return product if len(before) == 1 else product.reshape([*before, weight.shape[1]])
