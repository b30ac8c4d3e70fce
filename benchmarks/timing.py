"""Rounds, medians and spreads."""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import NamedTuple

TURN_SECONDS = 0.05  # minimum length of a round, so that the overhead of clock and pipes does not count
SECONDS_EACH = 3.0  # time limit of a contender over all rounds; slower contenders get fewer rounds


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
    """Times of ``measure(name)`` for each of ``who``, alternating (A B A B ...), so that a slowdown of the
    machine affects all of them. The first ``warm_up`` rounds are not counted. ``rounds`` may differ by
    contender.
    """
    times = {name: [] for name in who}
    counts = rounds if isinstance(rounds, Mapping) else dict.fromkeys(times, rounds)
    for turn in range(warm_up + max(counts.values())):
        for name, measured in times.items():
            if turn >= warm_up + counts[name]:
                continue
            seconds = measure(name)
            if turn >= warm_up:
                measured.append(seconds)
    return times


def calls_of_a_turn(seconds: float) -> int:
    """The number of calls for a sufficiently long round, if a call takes ``seconds``."""
    return max(1, math.ceil(TURN_SECONDS / seconds))


def rounds_within(seconds: float, rounds: int, budget: float = SECONDS_EACH) -> int:
    """The number of rounds for a contender whose round takes ``seconds``: ``rounds``, or fewer if it is
    slow."""
    return max(1, min(rounds, int(budget / seconds)))
