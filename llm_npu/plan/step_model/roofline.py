"""Seconds of one operation on one card.

    matrix product   F / (cube P) + out / M       P peak, F operations, out bytes of the result
    attention        F / (attention P min(1, D / 128))
    others           bytes / M, or / (5 M) for cached bytes

M is the share ``memory`` of the bandwidth that a single kernel sustains. A matmul accumulates its result
before it writes it to memory, so matmuls with a short inner dimension are slow. TFLOPS measured by a third
party on a 910B2C (README of https://github.com/gameofdimension/gpu_benchmark), in brackets by this formula
with cube 0.93: 6912 x 16384 x 2048 292 (292), 14336 x 4096 x 4096 317 (310), 6144 x 17920 x 2816 301 (302).
The vector unit needs the same time for a softmax row with smaller heads, hence the last factor of attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llm_npu.core.cards import Card

from .operations import Operation

WIDTH = {"bfloat16": 2, "float16": 2, "float32": 4}
FULL_HEAD = 128


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
