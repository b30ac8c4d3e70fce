"""Stragglers: ranks that the others wait for."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np
import pandas as pd

from . import classes
from .measure import IDLE, Measured

_NOTICEABLE = 0.02  # of the window


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for; times in ns.

    Attributes:
        others: the other ranks of the communication groups in which this rank arrives last.
        compared: the number of collectives of these groups.
        cost: how much longer the others wait: the median within a group, the maximum over groups.
        at_stake: the sum over all others.
        reason: the class on which the rank spends more time than the others.
    """

    rank: int
    others: tuple[int, ...]
    cost: int
    at_stake: int
    reason: str
    compared: int


@dataclass(frozen=True)
class Stragglers:
    """A comparison of ranks; times in ns.

    A collective ends on all ranks when the last rank has arrived, so the last rank waits least. This needs no
    common clock. Collectives are matched by name, which contains the numbers of the group and the collective.
    If ranks have no names in common, the n-th calls of the same operator are matched.

    Attributes:
        waiting: by rank, the extra duration of its collectives over the rank with the shortest duration.
        slow: the stragglers, most expensive first. A rank that waits longer in other groups than its peers
        wait for it only propagates a delay, and is not included.
    """

    waiting: dict[int, int]
    slow: tuple[Straggler, ...]
    compared: int  # matched collectives


@dataclass(frozen=True)
class _Group:
    """Ranks (as indices into the list of all ranks) with ``compared`` collectives in common."""

    members: np.ndarray
    waiting: np.ndarray  # by index, 0 for non-members
    compared: int


def find(ranks: list[Measured]) -> Stragglers | None:
    """Compare ranks; None for a single rank, or if no collective ran equally often on several ranks."""
    if len(ranks) < 2:
        return None
    groups = _groups(ranks, "name") or _groups(ranks, "operator")
    if not groups:
        return None
    waiting = np.sum([group.waiting for group in groups], axis=0)
    slow = [
        straggler for place in range(len(ranks)) if (straggler := _straggler(ranks, place, groups, waiting))
    ]
    return Stragglers(
        {rank.rank: int(wait) for rank, wait in zip(ranks, waiting, strict=True)},
        tuple(sorted(slow, key=lambda straggler: -straggler.at_stake)),
        sum(group.compared for group in groups),
    )


def _groups(ranks: list[Measured], by: str) -> list[_Group]:
    """Sets of ranks with common collectives, and the time that each rank waited in them."""
    parts = [
        pd.DataFrame(
            {"name": rank.collectives[by].astype(str), "time": rank.collectives["duration"], "rank": place}
        )
        for place, rank in enumerate(ranks)
    ]
    calls = pd.concat(parts, ignore_index=True)
    calls["turn"] = calls.groupby(["name", "rank"]).cumcount()
    calls["waited"] = calls["time"] - calls.groupby(["name", "turn"])["time"].transform("min")
    code, names = pd.factorize(calls["name"])
    counts = np.zeros((len(names), len(ranks)), np.int64)
    np.add.at(counts, (code, calls["rank"].to_numpy()), 1)
    there, often = counts > 0, counts.max(axis=1)
    shared = (there.sum(axis=1) > 1) & ((counts == often[:, None]) | ~there).all(axis=1)
    sets: list[_Group] = []
    if not shared.any():
        return sets
    for members in np.unique(there[shared], axis=0):
        own = shared & (there == members).all(axis=1)
        waiting = np.zeros(len(ranks), np.int64)
        mine = calls[own[code]]
        np.add.at(waiting, mine["rank"].to_numpy(), mine["waited"].to_numpy())
        sets.append(_Group(np.flatnonzero(members), waiting, int(often[own].sum())))
    return sets


def _straggler(
    ranks: list[Measured], place: int, groups: list[_Group], waiting: np.ndarray
) -> Straggler | None:
    """The straggler at ``place``; None if waiting for it is negligible. ``waiting`` covers all groups."""
    last, costs = [], []
    for group in groups:
        own = group.waiting[place]
        if place not in group.members or own > group.waiting[group.members].min():
            continue
        others = group.members[group.members != place]
        cost, elsewhere = int(median(group.waiting[others]) - own), int(waiting[place] - own)
        if cost - elsewhere > _NOTICEABLE * ranks[place].window:
            last.append(group)
            costs.append(cost)
    if not last:
        return None
    others = sorted({int(other) for group in last for other in group.members} - {place})
    return Straggler(
        ranks[place].rank,
        tuple(ranks[other].rank for other in others),
        max(costs),
        sum(cost * (len(group.members) - 1) for cost, group in zip(costs, last, strict=True)),
        _reason(ranks[place], [ranks[other] for other in others]),
        sum(group.compared for group in last),
    )


def _reason(slow: Measured, others: list[Measured]) -> str:
    """The class on which the rank spends more than the median of the others."""
    excess = {
        name: slow.spent()[name] - int(median(rank.spent()[name] for rank in others))
        for name in (*classes.COMPUTE, IDLE)
    }
    name = max(excess, key=excess.get)
    return name if excess[name] > 0 else ""
