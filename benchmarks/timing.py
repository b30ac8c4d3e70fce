"""Turns, medians and spreads."""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple

TURN_SECONDS = 0.05  # a turn is at least this long, so that the clock and the pipes do not count
SECONDS_EACH = 3.0  # for what takes longer in all its rounds there are fewer of them


class Summary(NamedTuple):
    """Median and spread (half the interquartile range) of some times."""

    median: float
    spread: float


def summary(seconds: list[float], scale: float = 1.0) -> Summary:
    quarters = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
    return Summary(quarters[1] * scale, (quarters[2] - quarters[0]) / 2 * scale)


def interleaved(
    measure: Callable[[Hashable], float],
    who: Iterable[Hashable],
    rounds: int | Mapping[Hashable, int],
    warm_up: int = 1,
) -> dict[Hashable, list[float]]:
    """Times of ``measure(name)`` for each of ``who``, which take turns (A B A B ...): what slows the machine
    down for a while slows all of them. The first ``warm_up`` turns of each do not count. ``rounds`` may
    differ for each.
    """
    times = {name: [] for name in who}
    counts = rounds if isinstance(rounds, Mapping) else dict.fromkeys(times, rounds)
    for turn in range(warm_up + max(counts.values())):
        for name, found in times.items():
            if turn >= warm_up + counts[name]:
                continue
            seconds = measure(name)
            if turn >= warm_up:
                found.append(seconds)
    return times


def calls_of_a_turn(seconds: float) -> int:
    """How many calls make a turn long enough, where one takes ``seconds``."""
    return max(1, math.ceil(TURN_SECONDS / seconds))


def rounds_within(seconds: float, rounds: int, each: float = SECONDS_EACH) -> int:
    """How many rounds a contender gets whose turn takes ``seconds``: ``rounds``, or fewer if it is slow."""
    return max(1, min(rounds, int(each / seconds)))
