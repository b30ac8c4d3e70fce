"""Random tasks of every class, many at the same time."""

from __future__ import annotations

import random

from .msprof import Task

KINDS = [
    ("matmul", "MatMulV2", "AI_CORE"),
    ("matmul", "BatchMatMulV2", "MIX_AIC"),
    ("matmul", "MatmulAllReduce", "MIX_AIC"),
    ("attention", "FlashAttentionScore", "MIX_AIC"),
    ("attention", "flash_attention_npu", "AI_CORE"),
    ("vector", "Mul", "AI_VECTOR_CORE"),
    ("vector", "broadcast_to", "AI_VECTOR_CORE"),
    ("AICPU", "Cast", "AI_CPU"),
    ("host fall-back", "nonzero", "HOST_CPU"),
    ("communication", "hcom_allReduce_", "HCCL"),
    ("communication", "hcom_allGather_", "COMMUNICATION"),
    ("copy", "MEMCPY_ASYNC", "MEMCPY_ASYNC"),
]


def some_tasks(seed: int, count: int = 60) -> list[tuple[str, Task]]:
    """Tasks at random whole microseconds on three streams, each with its class."""
    choose = random.Random(seed)
    pairs = []
    for number in range(count):
        work, kind, engine = KINDS[number % len(KINDS)]
        task = Task(kind, engine, choose.randrange(400), choose.randrange(1, 25), stream=choose.randrange(3))
        pairs.append((work, task))
    return pairs
