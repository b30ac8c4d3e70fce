"""Which rank the others wait for."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from . import classes
from .measure import IDLE, Measured

_NOTICEABLE = 0.02  # of the window


@dataclass(frozen=True)
class Stragglers:
    """Ranks side by side; times in ns.

    ``waiting``, by rank, is how long its collectives took beyond the shortest that any rank saw of the same
    one: a collective ends everywhere when the last rank has come, so who comes last waits least. That needs
    no common clock. ``slowest`` is the rank that the others wait for, None if there is none to speak of;
    ``cost`` how much longer the others wait (their median); ``reason`` what that rank spends more time on.
    """

    waiting: dict[int, int]
    slowest: int | None
    cost: int
    reason: str
    compared: int  # collectives that could be matched


def find(ranks: list[Measured]) -> Stragglers | None:
    """Compares ranks; None for a single one, or if no collective ran equally often on all of them."""
    if len(ranks) < 2:
        return None
    waiting = np.zeros(len(ranks), np.int64)
    compared = 0
    for name in set.intersection(*(set(rank.collectives) for rank in ranks)):
        times = [rank.collectives[name] for rank in ranks]
        if len({len(each) for each in times}) == 1:
            together = np.stack(times)
            waiting += (together - together.min(axis=0)).sum(axis=1)
            compared += together.shape[1]
    if not compared:
        return None
    last = int(waiting.argmin())
    cost = int(median(np.delete(waiting, last)) - waiting[last])
    noticeable = cost > _NOTICEABLE * ranks[last].window
    return Stragglers(
        {rank.rank: int(wait) for rank, wait in zip(ranks, waiting, strict=True)},
        ranks[last].rank if noticeable else None,
        cost if noticeable else 0,
        _reason(ranks, last) if noticeable else "",
        compared,
    )


def _reason(ranks: list[Measured], last: int) -> str:
    """The class on which the rank spends more than the others, their median."""
    excess = {}
    for name in (*classes.COMPUTE, IDLE):
        others = [rank.spent()[name] for i, rank in enumerate(ranks) if i != last]
        excess[name] = ranks[last].spent()[name] - int(median(others))
    name = max(excess, key=excess.get)
    return name if excess[name] > 0 else ""
