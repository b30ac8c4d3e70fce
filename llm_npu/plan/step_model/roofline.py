"""Seconds of one operation on one card, and of one collective.

    matrix product   F / (cube P) + out / M       P peak, F operations, out bytes of the result
    attention        F / (attention P min(1, D / 128))
    others           bytes / M, or / (5 M) for cached bytes

M is the share ``memory`` of the bandwidth that a single kernel sustains. A matmul accumulates its result
before it writes it to memory, so matmuls with a short inner dimension are slow. TFLOPS measured by a third
party on a 910B2C (README of https://github.com/gameofdimension/gpu_benchmark), in brackets by this formula
with cube 0.93: 6912 x 16384 x 2048 292 (292), 14336 x 4096 x 4096 317 (310), 6144 x 17920 x 2816 301 (302).
The vector unit needs the same time for a softmax row with smaller heads, hence the last factor of attention.

An all-gather or reduce-scatter of V bytes among n cards; an all-reduce takes twice as long:

    full mesh     V / (n B)                     every card sends its part to all others at once
    switch, ring  (n - 1) (V / (n B) + a)       with B bytes/s per card, and latency a
    halving       (n - 1) / n V / B + log2(n) a the same bytes in fewer steps; n a power of two

A collective runs first within each server, then between the servers on each card's share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llm_npu.core.cards import Card, Link

from .operations import Operation

WIDTH = {"bfloat16": 2, "float16": 2, "float32": 4}
FULL_HEAD = 128
# A reduce-scatter and an all-gather or gather; or a scatter and an all-gather.
TWICE = ("all_reduce", "reduce", "broadcast")


@dataclass(frozen=True)
class Efficiencies:
    """Efficiencies relative to the peaks, 0 to 1.

    Attributes:
        cube: of matmuls.
        attention: of fused attention with a head size of 128.
        hidden: the hidden share of the shorter of a collective and a matmul that overlap.
        launch: seconds between two kernels (assumed).
        host: seconds that the host needs per kernel (assumed).
        memory: the share of the memory bandwidth that a single kernel sustains.
        links: the share of the link bandwidth that a single collective sustains.
    """

    cube: float
    attention: float
    hidden: float
    launch: float = 3e-6
    host: float = 2e-5
    memory: float = 1.0
    links: float = 1.0


def compute_seconds(operation: Operation, card: Card, efficiencies: Efficiencies) -> float:
    """Seconds of all ``times`` runs of ``operation``, which must not be a collective."""
    once = memory = memory_seconds(operation, card) / efficiencies.memory
    if operation.kind == "matmul":
        once = operation.flops / (card.peak * efficiencies.cube)
        once += result_bytes(operation) / (card.sustained_bandwidth * efficiencies.memory)
        once = max(once, memory)
    elif operation.kind == "attention":
        share = min(1.0, operation.shapes[0][-1] / FULL_HEAD) if operation.shapes else 1.0
        once = max(operation.flops / (card.peak * efficiencies.attention * share), memory)
    return operation.times * (once + efficiencies.launch)


def memory_seconds(operation: Operation, card: Card) -> float:
    """Seconds of memory traffic of one run of ``operation``. The cache helps if all of the traffic fits."""
    cached = operation.cached if operation.bytes <= card.cache else 0.0
    return (operation.bytes - cached + cached / card.cache_speedup) / card.sustained_bandwidth


def result_bytes(operation: Operation) -> float:
    """Bytes of the result of the matmul ``operation``, batch x (m, k) by (k, n)."""
    if len(operation.shapes) < 2:
        return 0.0
    left, right = operation.shapes[:2]
    return math.prod(left[:-1]) * right[-1] * WIDTH.get(operation.dtype, 2)


def half(payload: float, cards: int, link: Link) -> float:
    """Seconds of a reduce-scatter or an all-gather of ``payload`` bytes among ``cards`` cards on ``link``."""
    if cards == 1:
        return 0.0
    bandwidth = link.bandwidth * link.efficiency
    if link.topology == "full_mesh":
        return payload / cards / bandwidth + link.latency
    moved = payload * (cards - 1) / cards / bandwidth
    steps = math.log2(cards) if cards & (cards - 1) == 0 else cards - 1
    return moved + steps * link.latency


def in_server(size: int, stride: int, link: Link) -> int:
    """How many of a group's ``size`` ranks, ``stride`` apart, are in one server."""
    if link.cards is None:
        return size
    return max(1, min(size, link.cards // stride))


def collective_seconds(operation: Operation, card: Card, stride: int = 1) -> float:
    """Seconds of one run of the collective ``operation``, with its group's ranks ``stride`` apart."""
    size, payload, link = operation.group_size, operation.payload, card.within_server
    if size == 1:
        return 0.0
    near, between = in_server(size, stride, link), card.between_servers
    if operation.collective == "send":
        # The slowest hop between neighbouring stages limits the pipeline.
        links = ([link] if near > 1 else []) + ([between] if near < size else [])
        return max(payload / (used.bandwidth * used.efficiency) + used.latency for used in links)
    once = half(payload, near, link) + half(payload / near, math.ceil(size / near), between)
    return (2 if operation.collective in TWICE else 1) * once
