"""One step of three tasks on one rank, and its right totals."""

from __future__ import annotations

from pathlib import Path

from llm_npu.profiling.report import summary

from .msprof import Task

MATMUL = Task("MatMulV2", "AI_CORE", "0.1", "10.05")
MUL = Task("Mul", "AI_VECTOR_CORE", "10.15", "20.1")  # begins in the very moment in which MATMUL ends
REDUCE = Task("hcom_allReduce_", "HCCL", 25, 15, name="hcom_allReduce__517_0_1", dtypes="N/A", shapes="N/A")
STEP = [MATMUL, MUL, REDUCE]


def only_rank(folder: Path):
    """What the report has of the one rank in ``folder``."""
    (rank,) = summary.build(folder).ranks
    return rank


def check_step(rank):
    """The totals of STEP."""
    assert rank.window == 39_900
    assert (rank.works["matmul"].time, rank.works["vector"].time) == (10_050, 20_100)
    assert (rank.communication, rank.hidden, rank.exposed) == (15_000, 5_250, 9_750)
    assert rank.idle == 0
