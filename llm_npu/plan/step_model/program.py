"""The operations of a step on one rank of a pipeline stage, from a model's sizes and a layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from llm_npu.core.cards import Card

from ..layout import Layout
from ..shape import ModelShape
from .operations import OFFLOAD, Operation, collective
from .roofline import Efficiencies, compute_seconds
from .stage import ADAM, CLIP, EXPERTS, SINGLE, WIDTH, Stage

CHUNKS = 4  # chunks of a matmul with the overlap "pipelined"


def update(parts: Stage, weights: float, owned: float) -> Iterator[Operation]:
    """Gradient clipping and the update of ``owned`` weights; the gradients of all ``weights`` are cleared."""
    yield Operation("gradients.clip", "vector", bytes=CLIP * owned, dtype="float32", phase="step")
    yield Operation("adam", "optimizer", bytes=ADAM * owned, dtype="float32", phase="step")
    # device: master weights and moments, both ways. host: gradients to the host, and weights back.
    moved = {"device": 2 * 3 * SINGLE, "host": SINGLE + WIDTH}.get(parts.layout.offload_optimizer)
    if moved:
        yield Operation("optimizer.offload", OFFLOAD, bytes=moved * owned, dtype="float32", phase="step")
    yield Operation("gradients.clear", "vector", bytes=SINGLE * weights, dtype="float32", phase="step")


def exchange(parts: Stage, weights: float) -> Iterator[Operation]:
    """The collectives of a step among the cards that hold the same ``weights``."""
    sharding = parts.layout.sharding
    if not sharding:
        yield parts.shard("all_reduce", SINGLE * weights, "step")
    elif sharding == "stage1":
        yield parts.shard("reduce", SINGLE * weights, "step")
    if sharding and parts.layout.sequence_degree > 1:
        sep = ("sep", parts.layout.sequence_degree, "step")
        yield collective("sequence", "all_reduce", SINGLE * weights, *sep)
    if sharding in ("stage1", "stage2"):
        yield parts.shard("broadcast", WIDTH * weights, "step")


def seconds(operation: Operation, card: Card, efficiencies: Efficiencies) -> float:
    """Seconds of ``operation``, which must not be a collective."""
    if operation.kind == OFFLOAD:
        return operation.times * operation.bytes / (card.to_host.bandwidth * card.to_host.efficiency)
    return compute_seconds(operation, card, efficiencies)


def strides(layout: Layout) -> Mapping[str, int]:
    """The stride of each group's ranks; from the inside: tensor, heads, ring, sharding, pp, dp."""
    tensor, sequence = layout.tensor_parallel_degree, layout.sequence_degree
    inside = layout.data_parallel_degree if layout.sharding else 1
    replicas = tensor * layout.pipeline_parallel_degree
    own = {"heads": tensor, "ring": tensor * layout.sep_parallel_degree, "sep": tensor}
    own |= {"tp": 1, EXPERTS: 1, "replicas": layout.expert_parallel_degree}
    return own | {"sharding": tensor * sequence, "pp": tensor * inside, "dp": replicas}


@lru_cache(1024)
def micro_batch(shape: ModelShape, layout: Layout, stage: int = 0) -> tuple[Operation, ...]:
    """Forward and backward of one micro batch on pipeline stage ``stage``.

    The operations of a layer appear once, with ``times`` equal to the number of layers.
    """
    parts = Stage(shape, layout)
    of_stages, last = layout.stage_layers(shape), layout.pipeline_parallel_degree - 1
    dense, again = shape.dense_of(of_stages, stage), layout.recompute_layers(shape, stage)
    first = min(again, dense)  # dense layers come first, also among recomputed ones
    kinds = [(shape, of_stages[stage] - dense, again - first)]
    if dense:
        kinds.append((shape.dense, dense, first))
    operations: list[Operation] = []
    for kind, layers, recomputed in kinds:
        if layers:
            operations += _decoder_layers(kind, layout.of_layers, layers, recomputed)
    if stage == 0:
        operations += parts.embedding()
    if stage == layout.loss_stage:
        operations += parts.head()
    if last:
        payload = parts.spread / parts.tp
        sends = layout.chunks * (2 if 0 < stage < last else 1)
        operations += [
            collective("pipeline", "send", payload, "pp", last + 1, phase, times=sends)
            for phase in ("forward", "backward")
        ]
    weights = parts.weights(stage)
    if layout.sharding == "stage3" and layout.sharding_degree > 1:
        operations += [parts.shard("all_gather", WIDTH * weights, phase) for phase in ("forward", "backward")]
    # Paddle's stage 2 reduces a gradient to its owner, stage 3 to every rank; both after every micro batch.
    sums = {"stage2": "reduce", "stage3": "all_reduce"}.get(layout.sharding)
    if sums and layout.sharding_degree > 1:
        operations.append(parts.shard(sums, SINGLE * weights, "backward"))
    return tuple(operations)


@lru_cache(1024)
def _decoder_layers(shape: ModelShape, layout: Layout, layers: int, again: int) -> tuple[Operation, ...]:
    parts = Stage(shape, layout)
    times = [(operation, layers) for operation in parts.layer()]
    times += [(operation, again) for operation in parts.recomputed() if again]
    times += [(operation, layers) for operation in parts.layer_backward()]
    if layout.offload_activations:
        moved = WIDTH * parts.rows * parts.hidden
        for phase in ("forward", "backward"):
            times.append((Operation("layer.offload", OFFLOAD, bytes=moved, phase=phase), layers))
    return tuple(operation._replace(times=operation.times * many) for operation, many in times)


@lru_cache(1024)
def once_a_step(shape: ModelShape, layout: Layout, stage: int = 0) -> tuple[Operation, ...]:
    """The operations of stage ``stage`` once per step: synchronize gradients, clip, update, broadcast."""
    parts = Stage(shape, layout)
    weights = parts.weights(stage)
    operations = [*update(parts, weights, parts.owned(stage))]
    own = parts.own_experts(stage)
    if own and (replicas := layout.replicas * parts.tp // parts.ep) > 1:
        operations.append(collective(EXPERTS, "all_reduce", SINGLE * own, "replicas", replicas, "step"))
    if layout.replicas > 1:
        operations += exchange(parts, weights - own)
    stages = layout.pipeline_parallel_degree
    if shape.tie_word_embeddings and layout.loss_stage > 0 and stage in (0, stages - 1):
        table = SINGLE * parts.vocabulary * parts.hidden
        operations.append(collective("embedding", "all_reduce", table, "pp", 2, "step"))
    return tuple(operations)


def distinct_stages(shape: ModelShape, layout: Layout) -> Sequence[int]:
    """For each stage, the first stage with the same operations."""
    layers = layout.stage_layers(shape)
    last, first_with, kinds = len(layers) - 1, {}, []
    for stage, count in enumerate(layers):
        inside = shape.dense_of(layers, stage), layout.recompute_layers(shape, stage)
        kinds.append((count, *inside, stage == 0, stage == last))
    return [first_with.setdefault(kind, stage) for stage, kind in enumerate(kinds)]
