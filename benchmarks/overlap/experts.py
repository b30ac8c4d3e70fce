"""Expert parallelism: its cases, and the bound for hidden transfers.

Contenders: ``serial`` computes all experts at once, ``pipelined:N`` in N groups, ``blocks`` sends nothing,
and ``experts`` are the grouped matmuls alone. Routing is balanced.
"""

from __future__ import annotations

from benchmarks.work import ITEM_SIZE

from .cases import EXPERTS, FORWARD, RANKS, Case
from .transfers import BLOCKS, SERIAL

OWN, TOP_K, WIDTH = 8, 2, 512  # experts of a rank; both sizes of an expert
CHUNKS = {f"pipelined:{chunks}": chunks for chunks in (2, 4, 8)}
ALONE, FORWARD_ALONE = "experts", "experts forward"
OPERATOR, GROWTH = EXPERTS, 1


def case_of(dtype: str, way: str, tokens: int) -> Case:
    """``tokens`` per rank."""
    return Case(EXPERTS, way, dtype, tokens, WIDTH, WIDTH)


def sent(case: Case) -> list[int]:
    """Bytes that a rank sends and receives, in turn, in each exchange: two in each pass."""
    rows = case.rows * TOP_K * (RANKS - 1) // RANKS
    return [2 * rows * WIDTH * ITEM_SIZE[case.dtype]] * (2 if case.way == FORWARD else 4)


def lanes(computed: float, exchange: float, chunks: int) -> float:
    """End time of one pass: rows of all chunks arrive, each is computed, and its results return."""
    end, linked = 0.0, exchange
    for chunk in range(chunks):
        end = max(end, exchange * (chunk + 1) / chunks) + computed / chunks
        linked = max(linked, end) + exchange / chunks
    return linked


def ends(case: Case, medians: dict[str, float]) -> dict[str, float]:
    """The bound of each number of chunks; ``medians`` in seconds."""
    blocks, alone = medians[BLOCKS], medians[ALONE]
    forward = medians.get(FORWARD_ALONE, alone)
    exchange = max(0.0, medians[SERIAL] - blocks) / len(sent(case))
    passes = [forward] if case.way == FORWARD else [forward, alone - forward]
    rest = blocks - alone  # sorting of rows, which nothing hides
    return {
        name: rest + sum(lanes(time, exchange, chunks) for time in passes) for name, chunks in CHUNKS.items()
    }
