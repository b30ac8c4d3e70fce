"""The operations of a step, generated from a model's sizes and a layout, for one rank of a pipeline stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ..layout import Layout
from ..shape import ModelShape
from .kernels import SINGLE, WIDTH
from .operations import Operation
from .software import TRAINER, Software
from .stage import ADAM, CLIP, Stage


@lru_cache(1024)
def micro_batch(
    shape: ModelShape, layout: Layout, stage: int = 0, software: Software = TRAINER
) -> tuple[Operation, ...]:
    """Forward and backward of one micro batch on pipeline stage ``stage``; a layer's operations appear once,
    with ``times`` the number of layers."""
    parts = Stage(shape, layout, software)
    of_stages, last = software.layers(shape, layout), layout.pipeline_parallel_degree - 1
    dense, again = shape.dense_of(of_stages, stage), software.layers_again(shape, layout, stage)
    first = min(again, dense)  # of the layers that are recomputed
    kinds = [(shape, of_stages[stage] - dense, again - first)]
    if dense:
        kinds.append((shape.dense, dense, first))
    found: list[Operation] = []
    for kind, layers, recomputed in kinds:
        if layers:
            found += _decoder_layers(kind, _of_layers(layout), _of_software(software), layers, recomputed)
    if stage == 0:
        found += parts.embedding()
    if stage == last:
        found += parts.head()
    if last:
        payload = parts.spread / parts.tp
        sends = layout.virtual_pp_degree * (2 if 0 < stage < last else 1)
        found += [
            Operation(
                "pipeline.send",
                "collective",
                phase=phase,
                times=sends,
                collective="send",
                payload=payload,
                group="pp",
                group_size=last + 1,
            )
            for phase in ("forward", "backward")
        ]
    weights = parts.weights(stage)
    if layout.sharding == "stage3" and layout.sharding_degree > 1:
        found += [parts.shard("all_gather", WIDTH * weights, phase) for phase in ("forward", "backward")]
    # Paddle's stage 2 sums a gradient on its owner, stage 3 on every rank, and both after every micro batch.
    sums = {"stage2": "reduce", "stage3": "all_reduce"}.get(layout.sharding)
    if sums and layout.sharding_degree > 1:
        found.append(parts.shard(sums, SINGLE * weights, "backward"))
    return tuple(found)


def _of_layers(layout: Layout) -> Layout:
    """``layout`` reduced to what decoder layers depend on, so that many layouts of a search share theirs."""
    return replace(
        layout,
        cards=layout.tensor_parallel_degree * layout.context_parallel_degree * layout.expert_parallel_degree,
        pipeline_parallel_degree=1,
        virtual_pp_degree=1,
        sharding="",
        global_batch_size=0,
        offload=False,
    )


def _of_software(software: Software) -> Software:
    return replace(software, stage_layers=None, recomputed=None)


@lru_cache(1024)
def _decoder_layers(
    shape: ModelShape, layout: Layout, software: Software, layers: int, again: int
) -> tuple[Operation, ...]:
    parts = Stage(shape, layout, software)
    times = [(operation, layers) for operation in parts.layer()]
    times += [(operation, again) for operation in parts.recomputed() if again]
    times += [(operation, layers) for operation in parts.layer_backward()]
    return tuple(operation._replace(times=operation.times * many) for operation, many in times)


@lru_cache(1024)
def once_a_step(
    shape: ModelShape, layout: Layout, stage: int = 0, software: Software = TRAINER
) -> tuple[Operation, ...]:
    """The operations of stage ``stage`` once per step: exchange gradients, clip, update, share the new
    weights."""
    parts = Stage(shape, layout, software)
    weights = parts.weights(stage)
    owned = parts.owned(stage)
    found = [
        Operation("gradients.clip", "vector", bytes=CLIP * owned, dtype="float32", phase="step"),
        Operation("adam", "optimizer", bytes=ADAM * owned, dtype="float32", phase="step"),
        Operation("gradients.clear", "vector", bytes=SINGLE * weights, dtype="float32", phase="step"),
    ]
    if layout.offload:  # master weights and moments come and go
        moved = 2 * 3 * SINGLE * owned
        found.append(Operation("optimizer.offload", "offload", bytes=moved, dtype="float32", phase="step"))
    if layout.data_parallel_degree * layout.context_parallel_degree > 1:
        beside = "backward" if software.overlaps_gradients else ""
        gradients = software.gradient_width * weights
        if not layout.sharding:
            found.append(parts.shard("all_reduce", gradients, "step", beside))
        elif layout.sharding == "stage1":
            reduce = "reduce_scatter" if software.scatters else "reduce"
            found.append(parts.shard(reduce, gradients, "step", beside))
        if layout.sharding in ("stage1", "stage2"):
            gather = "all_gather" if software.scatters else "broadcast"
            beside = "backward" if software.overlaps_weights else ""
            found.append(parts.shard(gather, WIDTH * weights, "step", beside))
    stages = layout.pipeline_parallel_degree
    if shape.tie_word_embeddings and stages > 1 and stage in (0, stages - 1):
        table = SINGLE * parts.vocabulary * parts.hidden
        found.append(
            Operation(
                "embedding.all_reduce",
                "collective",
                phase="step",
                collective="all_reduce",
                payload=table,
                group="pp",
                group_size=2,
            )
        )
    return tuple(found)


def distinct_stages(shape: ModelShape, layout: Layout, software: Software = TRAINER) -> Sequence[int]:
    """For every stage, the first one with the same operations."""
    layers = software.layers(shape, layout)
    last, first_with = len(layers) - 1, {}
    kinds = [
        (
            count,
            shape.dense_of(layers, stage),
            software.layers_again(shape, layout, stage),
            stage == 0,
            stage == last,
        )
        for stage, count in enumerate(layers)
    ]
    return [first_with.setdefault(kind, stage) for stage, kind in enumerate(kinds)]
