"""The fastest layout that fits, among all that the trainer supports."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from llm_npu.config.schedules import DUALPIPEV
from llm_npu.core.errors import UserError

from .interval import LONG
from .layout import DEGREES, SHARDING, Layout
from .memory_model.memory import Memory, peak
from .shape import ModelShape
from .trainer import (
    check,
    granularities,
    may_overlap,
    no_pipeline,
    no_split_sequences,
    with_paddleformers,
)


@dataclass(frozen=True)
class Found:
    """A layout with its cost: predicted ``seconds`` per step, and memory."""

    layout: Layout
    seconds: float
    memory: Memory


@dataclass(frozen=True)
class Search:
    """The result of a search.

    Attributes:
        best: the fastest layouts that fit, fastest first.
        considered: the number of trainable layouts.
        fitting: the number of layouts that fit.
        smallest: the lowest peak memory of any trainable layout, in bytes.
    """

    best: tuple[Found, ...]
    considered: int
    fitting: int
    smallest: int


def layouts(shape: ModelShape, like: Layout, cards_per_server: int) -> Iterator[Layout]:
    """All layouts that the trainer supports with the cards, samples, operators and overlap of ``like``.

    Groups of tensor parallelism and Ulysses stay within a server because every layer has their collectives.
    """
    schedules = [("", 1), ("", 2), ("", 4), *([] if with_paddleformers(shape) else [(DUALPIPEV, 1)])]
    for tensor, sep, ring in _inner_degrees(shape, like, cards_per_server):
        inner = tensor * sep * ring
        for stages in (1,) if no_pipeline(shape) or sep * ring > 1 else _divisors(like.cards // inner):
            replicas = like.cards // (inner * stages)
            spread = shape.num_experts and (with_paddleformers(shape) or tensor * stages == 1)
            experts = _divisors(math.gcd(like.cards // stages, shape.num_experts)) if spread else [1]
            rows = _divisors(like.global_batch_size // replicas)
            orders = schedules if stages > 1 else schedules[:1]
            for row, (schedule, chunks), ranks in product(rows, orders, experts):
                fields = dict(zip(DEGREES, (tensor, stages, sep, ring), strict=True)) | {
                    "expert_parallel_degree": ranks,
                    "pipeline_schedule": schedule,
                    "virtual_pp_degree": chunks,
                    "per_device_train_batch_size": row,
                }
                yield from _variants(shape, like, fields, replicas)


def _inner_degrees(shape: ModelShape, like: Layout, cards_per_server: int) -> Iterator[tuple[int, int, int]]:
    """The degrees of tensor parallelism, Ulysses and ring. Only long sequences are split."""
    splits = like.max_seq_length >= LONG and not no_split_sequences(shape)
    for tensor in _divisors(like.cards):
        for sep in _divisors(like.cards // tensor) if splits else (1,):
            if tensor * sep <= cards_per_server:
                for ring in _divisors(like.cards // (tensor * sep)) if splits else (1,):
                    yield tensor, sep, ring


def _variants(shape: ModelShape, like: Layout, fields: dict, replicas: int) -> Iterator[Layout]:
    """``fields`` with and without sharding, sequence parallelism and recompute; nothing if the trainer
    refuses the degrees."""
    without: dict = {"recompute": False, "offload_activations": False, "sharding": ""}
    recomputes: list[dict] = [without]
    for granularity in reversed(granularities(shape)):
        variant = {"recompute": True, "recompute_granularity": granularity}
        recomputes.append(
            variant | {"offload_activations": like.offload_activations and granularity == "full"}
        )
    plain = []
    for sequence in (False, True) if fields["tensor_parallel_degree"] > 1 else (False,):
        try:
            layout = dataclasses.replace(like, **fields | without | {"sequence_parallel": sequence})
            check(shape, layout)
        except ValueError:
            continue
        plain.append(layout)
    kinds = SHARDING if replicas > 1 else ("",)
    for kind, layout, recompute in product(kinds, plain, recomputes):
        try:
            variant = dataclasses.replace(layout, **recompute | {"sharding": kind})
            if kind and max(layout.sequence_degree, layout.expert_parallel_degree) > 1:
                check(shape, variant)
        except ValueError:
            continue
        yield variant


def fitting(
    shape: ModelShape, like: Layout, limit: Callable[[Layout], int], cards_per_server: int
) -> tuple[list[Found], int, int]:
    """The layouts whose peak memory is within ``limit``, not timed yet (0 seconds).

    Also returns the number of trainable layouts and their lowest peak memory in bytes. Raises ValueError if
    no layout can train ``shape`` at any memory size.
    """
    fit, considered, smallest = [], 0, 0
    too_large: set[Layout] = set()  # with micro batches of one sample; larger ones need at least as much
    for layout in layouts(shape, like, cards_per_server):
        considered += 1
        kind = dataclasses.replace(layout, per_device_train_batch_size=1)
        if kind in too_large:
            continue
        memory = peak(shape, layout)
        smallest = min(smallest or memory.peak_memory_bytes, memory.peak_memory_bytes)
        if memory.peak_memory_bytes <= limit(layout):
            fit.append(Found(layout, 0.0, memory))
        else:
            too_large.add(kind)
    if not considered:
        raise UserError(
            f"no degrees divide {shape.name} and --global_batch_size {like.global_batch_size} over --cards "
            f"{like.cards}; choose a multiple of {like.cards}, or choose another number of cards"
        )
    return fit, considered, smallest


def search(
    shape: ModelShape,
    like: Layout,
    limit: Callable[[Layout], int],
    cards_per_server: int,
    seconds: Callable[[Layout], float],
    *,
    overlaps: tuple[str, ...] = ("serial",),
    keep: int = 5,
) -> Search:
    """The ``keep`` fastest layouts that fit; lower memory breaks ties. Raises ValueError like `fitting`.

    Args:
        limit: the bytes of a card available to tensors with a layout.
        seconds: predicts the step time of a layout.
        overlaps: the overlap modes to try with tensor parallelism; they need equal memory.
    """
    fit, considered, smallest = fitting(shape, like, limit, cards_per_server)
    timed = []
    for candidate in fit:
        modes = overlaps if may_overlap(shape, candidate.layout) else overlaps[:1]
        for layout in (dataclasses.replace(candidate.layout, overlap=mode) for mode in modes):
            timed.append(Found(layout, seconds(layout), candidate.memory))
    timed.sort(key=lambda candidate: (candidate.seconds, candidate.memory.peak_memory_bytes))
    return Search(tuple(timed[:keep]), considered, len(fit), smallest)


def _divisors(number: int) -> list[int]:
    """Divisors, ascending; an empty list for 0."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor < number]
