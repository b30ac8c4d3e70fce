"""Ring attention: its cases, and the bound for hidden transfers.

Contenders: ``serial`` waits for every transfer, ``overlapped`` is the operator, ``blocks`` sends nothing.

On two ranks, the forward pass computes two blocks of equal work: the own keys (while the other keys are
transferred) and the other keys. The backward pass computes half of the own block while the keys are
transferred, then the other rank's block, then the second half of the own block while the float32 gradients
return.
"""

from __future__ import annotations

from benchmarks.work import ITEM_SIZE

from .cases import FORWARD, RANKS, RING, Case
from .transfers import BLOCKS, FORWARD_BLOCKS, SERIAL

HEADS, KEY_HEADS, HEAD_DIM = 8, 2, 64
OVERLAPPED = "overlapped"
OPERATOR, GROWTH = RING, 2  # the work grows with the square of the tokens


def case_of(dtype: str, way: str, tokens: int) -> Case:
    """``tokens`` per rank."""
    return Case(RING, way, dtype, tokens, HEAD_DIM, HEADS)


def sent(case: Case) -> list[int]:
    """Bytes of each transfer of a rank: keys and values; in a step also a second transfer, and gradients."""
    numbers = 2 * case.rows * KEY_HEADS * HEAD_DIM * (RANKS - 1)
    keys = numbers * ITEM_SIZE[case.dtype]
    return [keys] if case.way == FORWARD else [keys, keys, 4 * numbers]


def bound(case: Case, blocks: float, forward: float, transfers: float) -> float:
    """End time if every transfer overlaps the blocks that do not need it.

    Args:
        blocks: seconds of all blocks.
        forward: seconds of the blocks of the forward pass.
        transfers: seconds of all transfers.
    """
    total = sum(sent(case))
    times = [transfers * size / total for size in sent(case)]
    backward = blocks - forward
    lanes = [forward / 2, backward / 4, backward / 4]
    concurrent = sum(max(lane, time) for lane, time in zip(lanes, times, strict=False))
    return blocks - sum(lanes[: len(times)]) + concurrent


def ends(case: Case, medians: dict[str, float]) -> dict[str, float]:
    """The bound of each contender that hides transfers; ``medians`` in seconds."""
    blocks = medians[BLOCKS]
    transfers = max(0.0, medians[SERIAL] - blocks)
    return {OVERLAPPED: bound(case, blocks, medians.get(FORWARD_BLOCKS, blocks), transfers)}
