"""Sets of times, for example to compute how much communication overlaps computation."""

from __future__ import annotations

import numpy as np


class Spans:
    """A set of times, from possibly overlapping intervals [start, end) in integer nanoseconds.

    The intervals of ``starts`` and ``ends`` are disjoint and ascending, so nothing is counted twice.
    """

    def __init__(self, starts, ends):
        starts, ends = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        first = np.ones(len(starts), dtype=bool)
        first[1:] = starts[1:] > ends[:-1]
        self.starts = starts[first]
        self.ends = ends[np.append(first[1:], True)] if len(ends) else ends
        self._before = np.concatenate([[0], np.cumsum(self.ends - self.starts)])

    @property
    def total(self) -> int:
        """The length of the set."""
        return int(self._before[-1])

    def union(self, other: Spans) -> Spans:
        """The times in either set."""
        return Spans(np.append(self.starts, other.starts), np.append(self.ends, other.ends))

    def covered(self, starts, ends) -> np.ndarray:
        """The part of each interval [start, end) that is in the set."""
        return self._until(np.asarray(ends)) - self._until(np.asarray(starts))

    def shared(self, other: Spans) -> int:
        """The length of the intersection of two sets."""
        return int(self.covered(other.starts, other.ends).sum())

    def gaps(self, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends of the times in [start, end) that are not in the set."""
        inside = (self.ends > start) & (self.starts < end)
        starts = np.append(start, self.ends[inside])
        ends = np.append(self.starts[inside], end)
        empty = starts >= ends
        return starts[~empty], ends[~empty]

    def _until(self, times: np.ndarray) -> np.ndarray:
        if not len(self.starts):
            return np.zeros(len(times), dtype=np.int64)
        begun = np.searchsorted(self.starts, times, side="right")
        still_to_come = np.maximum(self.ends[begun - 1] - times, 0)
        return self._before[begun] - np.where(begun > 0, still_to_come, 0)
