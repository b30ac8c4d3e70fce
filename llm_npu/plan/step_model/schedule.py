"""The time of a pipelined step, given the time of one micro batch on every stage.

1F1B (arXiv 2104.04473): every stage processes m micro batches, each in t_i seconds forward and backward. The
slowest stage is never idle once the pipeline is full; filling and draining adds each other stage once:

    T = m max(t) + (sum(t) - max(t)) / v

with v model chunks per stage (interleaved filling takes 1/v of the time). Exact for equal stages; otherwise
an upper bound, because a slow first stage drains while others are still busy.
"""

from __future__ import annotations

from collections.abc import Sequence


def pipeline(stages: Sequence[float], micro_batches: int, chunks: int = 1) -> tuple[float, float]:
    """Seconds of a step, and its bubble: the seconds in which even the slowest stage is idle.

    Args:
        stages: seconds of one micro batch, forward and backward, of every stage.
        chunks: v above.
    """
    slowest = max(stages)
    bubble = (sum(stages) - slowest) / chunks
    return micro_batches * slowest + bubble, bubble
