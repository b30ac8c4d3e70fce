"""Megatron's order of forward and backward passes in a pipeline stage, and what its micro batches hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

GROUPS = 3  # of micro batches, as many as stages: later ones repeat what these hold


def passes(
    stage: int, stages: int, chunks: int, micro_batches: int, fills: bool = False
) -> Iterator[tuple[bool, int]]:
    """(whether forward, chunk) of every pass of 1F1B, interleaved if ``chunks`` > 1.

    ``fills``: `Release.fills`.
    """
    batches = min(micro_batches, GROUPS * stages) if stages > 1 else 1
    total = batches * chunks
    warm_up = min(stages - stage - 1, total)
    if chunks > 1:
        warm_up = min((stages - stage - 1) * 2 + (chunks - 1) * stages, total)
        if fills and micro_batches == stages:
            warm_up = total
    for number in range(total):
        yield True, _chunk(number, stages, chunks)
        if number >= warm_up:
            yield False, chunks - 1 - _chunk(number - warm_up, stages, chunks)
    for number in range(total - warm_up, total):
        yield False, chunks - 1 - _chunk(number, stages, chunks)


def _chunk(number: int, stages: int, chunks: int) -> int:
    return number % (stages * chunks) // stages


def fullest(
    order: Iterator[tuple[bool, int]],
    held: Sequence[float],
    forward: Sequence[float],
    backward: Sequence[float],
) -> float:
    """The most bytes at once: a pass through chunk c holds ``held[c]`` from its forward to its backward pass,
    and ``forward[c]`` or ``backward[c]`` during them."""
    live = most = 0.0
    for is_forward, chunk in order:
        if is_forward:
            live += held[chunk]
            most = max(most, live + forward[chunk])
        else:
            most = max(most, live + backward[chunk])
            live -= held[chunk]
    return most
