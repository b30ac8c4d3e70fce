"""Enable and disable overlap in the parallel layers of a model.

fleet's row-parallel layer has no overlap switch, and its column-parallel layers overlap only their gradients.
As in llm_npu.surgery, forwards are replaced on the layer instances; parameters, names and state_dict do not
change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import paddle
from paddle.distributed.fleet.layers.mpu import ColumnParallelLinear, RowParallelLinear
from paddle.distributed.fleet.utils.sequence_parallel_utils import (
    ColumnSequenceParallelLinear,
    RowSequenceParallelLinear,
)

from llm_npu.core.errors import UserError
from llm_npu.surgery import swap
from llm_npu.surgery.registry import Replacement
from llm_npu.surgery.report import Report, Row

from . import forwards, placed
from .forwards import Options
from .planner import AUTO, Planner
from .product import Setting

PURPOSE = "overlap"
LORA = "paddlenlp.peft.lora"


class ParallelLayer(NamedTuple):
    """The operator of a layer, and the forward that calls it."""

    operator: str
    forward: Callable


FLEET = {
    ColumnParallelLinear: ParallelLayer("replicated_matmul", forwards.column),
    RowParallelLinear: ParallelLayer("matmul_all_reduce", forwards.row),
    ColumnSequenceParallelLinear: ParallelLayer("all_gather_matmul", forwards.column_sequence),
    RowSequenceParallelLinear: ParallelLayer("matmul_reduce_scatter", forwards.row_sequence),
}
PLACED = ParallelLayer("placed.matmul", placed.forward)
LORA_LAYERS = {
    "ColumnParallelLoRALinear": ParallelLayer("replicated_matmul", forwards.column_lora),
    "RowParallelLoRALinear": ParallelLayer("matmul_all_reduce", forwards.row_lora),
    "ColumnSequenceParallelLoRALinear": ParallelLayer("all_gather_matmul", forwards.column_sequence_lora),
    "RowSequenceParallelLoRALinear": ParallelLayer("matmul_reduce_scatter", forwards.row_sequence_lora),
}


def apply_overlap(
    model: paddle.nn.Layer,
    overlap: str | Setting | Planner = AUTO,
    recompute_gather: bool = False,
    split: int | None = None,
    strict: bool = False,
) -> Report:
    """Make the tensor- and sequence-parallel linear layers of ``model`` overlap compute and communication.

    An earlier call is undone first. Parameters may be frozen, and LoRA applied, before or after.

    Args:
        overlap: ``auto`` (the planner chooses for each shape), ``serial``, ``mc2``, ``pipelined:CHUNKS``, or
            a Planner with customised settings.
        recompute_gather: whether sequence-parallel column layers gather their input again for the weight
            gradient instead of saving it.
        split: for a model of distributed tensors (auto-parallel), the dimension along which the results of
            row-parallel layers are split; the sequence dimension with sequence parallelism.
        strict: raise an error for a parallel layer that cannot overlap.

    Returns:
        One row per parallel layer: its operator, or the reason why it stays unchanged.

    Raises:
        ValueError: for a model without a parallel linear layer, and for invalid settings.
    """
    if not isinstance(model, paddle.nn.Layer):
        raise UserError(f"model is a {type(model).__name__}; accepted: a paddle.nn.Layer")
    chooser = overlap if isinstance(overlap, Planner) or overlap == AUTO else Setting.of(overlap)
    options = Options(chooser, bool(recompute_gather), split)
    rows, sites = [], []
    for path, layer in model.named_sublayers(include_self=True):
        site = _site(layer)
        if site is None:
            continue
        reason = _reason(layer, site)
        rows.append(Row(path, type(layer).__name__, site.operator, not reason, reason))
        if not reason:
            sites.append((layer, site))
    _check(model, rows, strict)
    remove_overlap(model)
    for layer, site in sites:
        replacement = Replacement(forward=site.forward, attributes={"overlap_options": options})
        swap.install(layer, {site.operator: replacement}, PURPOSE)
    return Report(type(model).__name__, rows)


def overlapped_layers(model: paddle.nn.Layer) -> list[paddle.nn.Layer]:
    """The layers of ``model`` that overlap."""
    return [layer for layer in model.sublayers(include_self=True) if swap.is_swapped(layer, PURPOSE)]


def remove_overlap(model: paddle.nn.Layer) -> int:
    """Undo `apply_overlap`; returns the number of restored layers."""
    layers = overlapped_layers(model)
    for layer in layers:
        swap.remove(layer)
    return len(layers)


def _site(layer) -> ParallelLayer | None:
    """The replacement for a parallel linear layer; None for any other layer."""
    if isinstance(layer, paddle.nn.Linear) and placed.splits_rows(layer.weight) is not None:
        return PLACED
    for kind in type(layer).__mro__:
        if kind in FLEET:
            return FLEET[kind]
        if kind.__name__ in LORA_LAYERS and kind.__module__.startswith(LORA):
            return LORA_LAYERS[kind.__name__]
    return None


def _reason(layer, site: ParallelLayer) -> str:
    """The reason why a parallel layer must stay unchanged, or an empty string."""
    upstream = type(layer)
    if site is PLACED:
        return (
            ""
            if upstream.forward is paddle.nn.Linear.forward
            else f"{upstream.__name__} has a custom forward"
        )
    if upstream not in FLEET and not (
        upstream.__name__ in LORA_LAYERS and upstream.__module__.startswith(LORA)
    ):
        return f"{upstream.__name__} has a custom forward"
    if "forward" in layer.__dict__ and not swap.is_swapped(layer, PURPOSE):
        return "its forward has been replaced on the instance"
    if layer.world_size < 2:
        return "its group has one rank and no communication"
    if getattr(layer, "fuse_matmul_bias", False) or getattr(layer, "mp_scale", None) is not None:
        return "fuse_matmul_bias computes the layer in one kernel"
    if getattr(layer, "mp_skip_c_identity", False):
        return "mp_skip_c_identity makes the model sum the gradient"
    if getattr(layer, "mp_fused_linear_param_grad_add", False):
        return "mp_fused_linear_param_grad_add adds the weight gradient in place"
    if getattr(layer, "_use_quick_lora", False) and "Sequence" not in upstream.__name__:
        return "use_quick_lora computes the layer and its LoRA together"
    return ""


def _check(model, rows: list[Row], strict: bool) -> None:
    if not rows:
        names = ", ".join(kind.__name__ for kind in FLEET)
        raise UserError(
            f"{type(model).__name__} has no parallel linear layer; accepted: a model of distributed tensors, "
            f"or a model built with tensor_parallel_degree above 1, which has {names}"
        )
    left = [row for row in rows if not row.fused]
    if strict and left:
        first = "; ".join(f"{row.layer}: {row.reason}" for row in left[:3])
        raise UserError(
            f"{len(left)} of {len(rows)} parallel layers of {type(model).__name__} cannot overlap: {first}. "
            "Omit strict to overlap the other layers."
        )
