"""The fastest layout that fits, among all that the trainer supports."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from llm_npu.core.errors import UserError

from .layout import SHARDING, Layout
from .memory_model.memory import Memory, peak
from .shape import ModelShape
from .trainer import check, granularities, no_pipeline


@dataclass(frozen=True)
class Found:
    """A layout with its cost: ``seconds`` per step by the cost model, and its memory."""

    layout: Layout
    seconds: float
    memory: Memory


@dataclass(frozen=True)
class Search:
    """``best``: the fastest first. ``considered``: number of trainable layouts, ``fitting``: of those that
    fit.

    ``smallest``: the least memory of any trainable layout, in bytes.
    """

    best: tuple[Found, ...]
    considered: int
    fitting: int
    smallest: int


def layouts(shape: ModelShape, like: Layout, cards_per_server: int) -> Iterator[Layout]:
    """All layouts of the run ``like`` that the trainer supports: same cards, samples, operators and overlap.

    A tensor-parallel group stays within a server: its collectives are in every layer.
    """
    for tensor in _divisors(like.cards):
        if tensor > cards_per_server:
            continue
        for stages in (1,) if no_pipeline(shape) else _divisors(like.cards // tensor):
            replicas = like.cards // (tensor * stages)
            for rows in _divisors(like.global_batch_size // replicas):
                for chunks in (1, 2, 4) if stages > 1 else (1,):
                    fields = {
                        "tensor_parallel_degree": tensor,
                        "pipeline_parallel_degree": stages,
                        "virtual_pp_degree": chunks,
                        "per_device_train_batch_size": rows,
                        "sharding": "",
                        "sequence_parallel": False,
                        "recompute": False,
                    }
                    yield from _variants(shape, like, fields, replicas)


def _variants(shape: ModelShape, like: Layout, fields: dict, replicas: int) -> Iterator[Layout]:
    """With and without sharding, sequence parallelism and recompute; none for impossible degrees."""
    recomputes: list[dict] = [{"recompute": False}]
    for granularity in reversed(granularities(shape)):
        recomputes.append({"recompute": True, "recompute_granularity": granularity})
    plain = []
    for sequence in (False, True) if fields["tensor_parallel_degree"] > 1 else (False,):
        try:
            found = dataclasses.replace(like, **fields | {"sequence_parallel": sequence})
            check(shape, found)
        except ValueError:
            continue
        plain.append(found)
    kinds = SHARDING if replicas > 1 else ("",)
    for kind, one, recompute in product(kinds, plain, recomputes):
        try:
            found = dataclasses.replace(one, sharding=kind, **recompute)
        except ValueError:
            continue
        yield found


def fitting(
    shape: ModelShape, like: Layout, limit: Callable[[Layout], int], cards_per_server: int
) -> tuple[list[Found], int, int]:
    """The layouts whose peak is within ``limit``, not timed yet (0 seconds).

    Also the number of trainable layouts, and the least memory of any of these, in bytes. ValueError if no
    layout can train ``shape``, whatever its memory.
    """
    found, considered, smallest = [], 0, 0
    too_large: set[Layout] = set()  # with micro batches of one sample: larger ones need no less memory
    for layout in layouts(shape, like, cards_per_server):
        considered += 1
        kind = dataclasses.replace(layout, per_device_train_batch_size=1)
        if kind in too_large:
            continue
        memory = peak(shape, layout)
        smallest = min(smallest or memory.peak_memory_bytes, memory.peak_memory_bytes)
        if memory.peak_memory_bytes <= limit(layout):
            found.append(Found(layout, 0.0, memory))
        else:
            too_large.add(kind)
    if not considered:
        raise UserError(
            f"no degrees divide {shape.name} and --global_batch_size {like.global_batch_size} over --cards "
            f"{like.cards}; choose a multiple of {like.cards}, or choose another number of cards"
        )
    return found, considered, smallest


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
    """The ``keep`` fastest layouts that fit; less memory breaks ties.

    ``limit``: the bytes of a card available to tensors. ``seconds``: of a step. ``overlaps``: the ways to try
    with tensor parallelism, of which none needs more memory. ValueError as `fitting`.
    """
    found, considered, smallest = fitting(shape, like, limit, cards_per_server)
    ways = [
        dataclasses.replace(one, layout=dataclasses.replace(one.layout, overlap=way))
        for one in found
        for way in (overlaps if one.layout.tensor_parallel_degree > 1 else overlaps[:1])
    ]
    timed = [dataclasses.replace(one, seconds=seconds(one.layout)) for one in ways]
    timed.sort(key=lambda one: (one.seconds, one.memory.peak_memory_bytes))
    return Search(tuple(timed[:keep]), considered, len(found), smallest)


def _divisors(number: int) -> list[int]:
    """Divisors, ascending; none of 0."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor < number]
