"""Ranks that the others wait for."""

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

    ``others`` are the ranks of the communication groups in which it arrives last, ``compared`` the
    collectives of these groups. ``cost`` is how much longer the others of a group wait (their median; of
    several groups the maximum), ``at_stake`` the sum over all others. ``reason`` is the class on which the
    rank spends more time.
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

    ``waiting``, by rank, is how long its collectives took beyond the shortest time of the same collective on
    any rank: a collective ends everywhere when the last rank has arrived, so the last rank waits least. That
    needs no common clock. Collectives are matched by name, which contains the numbers of the group and of the
    collective; if ranks have no name in common, by occurrence of the same operator. ``slow`` are the ranks
    that others wait for, the most costly first: only if the others of their communication group wait longer
    than the rank itself waits in other groups, for otherwise it only passes a delay on.
    """

    waiting: dict[int, int]
    slow: tuple[Straggler, ...]
    compared: int  # collectives that could be matched


@dataclass(frozen=True)
class _Group:
    """Ranks, as indices into the list of all, that have ``compared`` collectives in common."""

    members: np.ndarray
    waiting: np.ndarray  # by index, 0 for non-members
    compared: int


def find(ranks: list[Measured]) -> Stragglers | None:
    """Compares ranks; None for a single one, or if no collective ran equally often on several of them."""
    if len(ranks) < 2:
        return None
    groups = _groups(ranks, "name") or _groups(ranks, "operator")
    if not groups:
        return None
    waiting = np.sum([group.waiting for group in groups], axis=0)
    slow = [found for place in range(len(ranks)) if (found := _straggler(ranks, place, groups, waiting))]
    return Stragglers(
        {rank.rank: int(wait) for rank, wait in zip(ranks, waiting, strict=True)},
        tuple(sorted(slow, key=lambda straggler: -straggler.at_stake)),
        sum(group.compared for group in groups),
    )


def _groups(ranks: list[Measured], by: str) -> list[_Group]:
    """The sets of ranks that have collectives in common, with the time that each waited in them."""
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
    found: list[_Group] = []
    if not shared.any():
        return found
    for members in np.unique(there[shared], axis=0):
        own = shared & (there == members).all(axis=1)
        waiting = np.zeros(len(ranks), np.int64)
        mine = calls[own[code]]
        np.add.at(waiting, mine["rank"].to_numpy(), mine["waited"].to_numpy())
        found.append(_Group(np.flatnonzero(members), waiting, int(often[own].sum())))
    return found


def _straggler(
    ranks: list[Measured], place: int, groups: list[_Group], waiting: np.ndarray
) -> Straggler | None:
    """The finding for one rank, or None if the wait for it is negligible. ``waiting`` is that of all
    groups."""
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
