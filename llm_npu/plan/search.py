"""The fastest layout that fits, among all that the trainer supports."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from llm_npu.core.errors import UserError

from .layout import Layout
from .memory_model.memory import Memory
from .shape import ModelShape
from .stack import PADDLE, Stack


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

    ``smallest``: the least memory of any trainable layout, in bytes. ``experts``: the expert-parallel degrees
    that were asked for, or () for none.
    """

    best: tuple[Found, ...]
    considered: int
    fitting: int
    smallest: int
    experts: tuple[int, ...] = ()


def layouts(
    shape: ModelShape,
    like: Layout,
    cards_per_server: int,
    stack: Stack = PADDLE,
    experts: tuple[int, ...] = (),
) -> Iterator[Layout]:
    """All layouts of the run ``like`` that ``stack`` supports: same cards, samples, operators and overlap.

    A tensor-parallel group stays within a server: its collectives are in every layer. A model that ``stack``
    does not cut into stages has pipelines only if ``like`` has one. ``experts``: the expert-parallel degrees
    to try; by default that of ``like``.
    """
    cut = stack.cuts(shape) or like.pipeline_parallel_degree > 1
    for tensor in _divisors(like.cards):
        if tensor > cards_per_server:
            continue
        for stages in _divisors(like.cards // tensor) if cut else (1,):
            replicas, left = divmod(like.cards, tensor * stages * like.context_parallel_degree)
            if left:
                continue
            for rows in _divisors(like.global_batch_size // replicas):
                chunks_and_experts = product(
                    (1, 2, 4) if stages > 1 else (1,), experts or (like.expert_parallel_degree,)
                )
                for chunks, expert in chunks_and_experts:
                    if replicas % expert:
                        continue
                    fields = {
                        "expert_parallel_degree": expert,
                        "tensor_parallel_degree": tensor,
                        "pipeline_parallel_degree": stages,
                        "virtual_pp_degree": chunks,
                        "per_device_train_batch_size": rows,
                        "sharding": "",
                        "sequence_parallel": False,
                        "recompute": False,
                    }
                    yield from _variants(shape, like, fields, replicas, stack)


def _variants(shape: ModelShape, like: Layout, fields: dict, replicas: int, stack: Stack) -> Iterator[Layout]:
    """With and without sharding, sequence parallelism and recompute; none for impossible degrees."""
    recomputes: list[dict] = [{"recompute": False}]
    for granularity in reversed(stack.granularities(shape)):
        recomputes.append({"recompute": True, "recompute_granularity": granularity})
    plain = []
    for sequence in (False, True) if fields["tensor_parallel_degree"] > 1 else (False,):
        try:
            found = dataclasses.replace(like, **fields | {"sequence_parallel": sequence})
            stack.check(shape, found)
        except ValueError:
            continue
        plain.append(found)
    kinds = stack.shardings if replicas > 1 else ("",)
    if replicas == 1 and like.context_parallel_degree > 1:  # these cards have the same weights
        kinds = ("", "stage1")
    for kind, one, recompute in product(kinds, plain, recomputes):
        try:
            found = dataclasses.replace(one, sharding=kind, **recompute)
        except ValueError:
            continue
        yield found


def fitting(
    shape: ModelShape,
    like: Layout,
    limit: Callable[[Layout], int],
    cards_per_server: int,
    stack: Stack = PADDLE,
    experts: tuple[int, ...] = (),
) -> tuple[list[Found], int, int]:
    """The layouts whose peak is within ``limit``, not timed yet (0 seconds).

    Also the number of trainable layouts, and the least memory of any of these, in bytes. ValueError if no
    layout can train ``shape``, whatever its memory. ``experts``: as in `layouts`.
    """
    found, considered, smallest = [], 0, 0
    too_large: set[Layout] = set()  # with micro batches of one sample: larger ones need no less memory
    for layout in layouts(shape, like, cards_per_server, stack, experts):
        considered += 1
        kind = dataclasses.replace(layout, per_device_train_batch_size=1)
        if kind in too_large:
            continue
        memory = stack.memory(shape, layout)
        smallest = min(smallest or memory.peak_memory_bytes, memory.peak_memory_bytes)
        if memory.peak_memory_bytes <= limit(layout):
            found.append(Found(layout, 0.0, memory))
        else:
            too_large.add(kind)
    if not considered:
        given = experts and experts != (1,)
        advice = "omit --expert_parallel_degree" if given else f"choose a multiple of {like.cards}"
        raise UserError(
            f"no degrees divide {shape.name} and --global_batch_size {like.global_batch_size} over --cards "
            f"{like.cards}; {advice}, or choose another number of cards"
        )
    return found, considered, smallest


def search(
    shape: ModelShape,
    like: Layout,
    limit: Callable[[Layout], int],
    cards_per_server: int,
    seconds: Callable[[Layout], float],
    *,
    stack: Stack = PADDLE,
    overlaps: tuple[str, ...] = ("serial",),
    experts: tuple[int, ...] = (),
    keep: int = 5,
) -> Search:
    """The ``keep`` fastest layouts that fit; less memory breaks ties.

    ``limit``: the bytes of a card available to tensors. ``seconds``: of a step. ``overlaps``: the ways to try
    with tensor parallelism, of which none needs more memory. ``experts``: as in `layouts`. ValueError as
    `fitting`.
    """
    found, considered, smallest = fitting(shape, like, limit, cards_per_server, stack, experts)
    ways = [
        dataclasses.replace(one, layout=dataclasses.replace(one.layout, overlap=way))
        for one in found
        for way in (overlaps if one.layout.tensor_parallel_degree > 1 else overlaps[:1])
    ]
    timed = [dataclasses.replace(one, seconds=seconds(one.layout)) for one in ways]
    timed.sort(key=lambda one: (one.seconds, one.memory.peak_memory_bytes))
    return Search(tuple(timed[:keep]), considered, len(found), smallest, experts)


def _divisors(number: int) -> list[int]:
    """Divisors, ascending; none of 0."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return small + [number // divisor for divisor in reversed(small) if divisor * divisor < number]
