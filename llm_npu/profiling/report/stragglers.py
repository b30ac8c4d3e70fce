"""Which rank the others wait for."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np
import pandas as pd

from . import classes
from .measure import IDLE, Measured

_NOTICEABLE = 0.02  # of the window


@dataclass(frozen=True)
class Stragglers:
    """Ranks side by side; times in ns.

    ``waiting``, by rank, is how long its collectives took beyond the shortest that any rank saw of the same
    one: a collective ends everywhere when the last rank has come, so who comes last waits least. That needs
    no common clock. The same one has the same name, which holds its group's and its own number; where ranks
    have no name in common, it is the same operator for the same time. ``slowest`` is the rank that the others
    wait for, None if there is none to speak of; ``cost`` how much longer the others wait (their median);
    ``reason`` what that rank spends more time on.
    """

    waiting: dict[int, int]
    slowest: int | None
    cost: int
    reason: str
    compared: int  # collectives that could be matched


def find(ranks: list[Measured]) -> Stragglers | None:
    """Compares ranks; None for a single one, or if no collective ran equally often on several of them."""
    if len(ranks) < 2:
        return None
    waiting, compared = _waiting(ranks, "name")
    if not compared:
        waiting, compared = _waiting(ranks, "operator")
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


def _waiting(ranks: list[Measured], by: str) -> tuple[np.ndarray, int]:
    """Of each rank the time that it waited, and how many collectives are the same on several ranks."""
    parts = [
        pd.DataFrame(
            {"name": rank.collectives[by].astype(str), "time": rank.collectives["duration"], "rank": i}
        )
        for i, rank in enumerate(ranks)
    ]
    calls = pd.concat(parts, ignore_index=True)
    calls["turn"] = calls.groupby(["name", "rank"]).cumcount()
    often = calls.groupby(["name", "rank"])["turn"].max().groupby("name").agg(["nunique", "count"])
    shared = often.index[(often["nunique"] == 1) & (often["count"] > 1)]
    calls = calls[calls["name"].isin(shared)]
    shortest = calls.groupby(["name", "turn"])["time"].transform("min")
    waited = (calls["time"] - shortest).groupby(calls["rank"]).sum()
    found = np.zeros(len(ranks), np.int64)
    found[waited.index.to_numpy(np.int64)] = waited
    return found, int((calls["rank"] == calls.groupby(["name", "turn"])["rank"].transform("min")).sum())


def _reason(ranks: list[Measured], last: int) -> str:
    """The class on which the rank spends more than the others, their median."""
    excess = {}
    for name in (*classes.COMPUTE, IDLE):
        others = [rank.spent()[name] for i, rank in enumerate(ranks) if i != last]
        excess[name] = ranks[last].spent()[name] - int(median(others))
    name = max(excess, key=excess.get)
    return name if excess[name] > 0 else ""
