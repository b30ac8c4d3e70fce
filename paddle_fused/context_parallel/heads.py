"""Which heads each rank of Ulysses has. Imports no framework: the planner reads it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise


def shares(count: int, ranks: int) -> list[int]:
    """``count`` split as evenly as possible; the first ranks get one more."""
    return [count // ranks + (rank < count % ranks) for rank in range(ranks)]


@dataclass(frozen=True)
class Heads:
    """The heads of each rank, as ranges (first, end).

    Attributes:
        queries: the query heads; the ranges do not overlap.
        keys: the key heads that they read; ranges overlap if several ranks read a head.
        copies: for each rank, the number of equal groups of its query heads that read each of its key heads.
    """

    queries: list[tuple[int, int]]
    keys: list[tuple[int, int]]
    copies: list[tuple[int, ...]]

    def of(self, rank: int) -> tuple[int, int]:
        """The numbers of query and key heads that the attention of a rank takes."""
        first, end = self.queries[rank]
        copies = self.copies[rank]
        return end - first, sum(copies) if self.repeats(rank) else len(copies)

    def repeats(self, rank: int) -> bool:
        """Whether key heads are repeated, because they are read by different numbers of query heads."""
        return len(set(self.copies[rank])) > 1


def distribute(heads: int, key_heads: int, ranks: int) -> Heads:
    """The heads of each rank, with key heads repeated only as far as needed.

    Ranks get whole key heads with their query heads. If there are fewer key heads than ranks, each is divided
    into the smallest number of equal groups of query heads that is enough.
    """
    if heads % key_heads:
        raise ValueError(
            f"ulysses_attention: query has {heads} heads and key {key_heads}; accepted: a multiple of key's "
            "heads."
        )
    if heads < ranks:
        raise ValueError(
            f"ulysses_attention: query has {heads} heads for {ranks} ranks; accepted: at least one head per "
            "rank. Split the sequence over fewer ranks."
        )
    of_key_head = heads // key_heads
    parts = next(n for n in range(1, of_key_head + 1) if of_key_head % n == 0 and key_heads * n >= ranks)
    ends = [0, *accumulate(shares(key_heads * parts, ranks))]  # in parts of key heads
    size = of_key_head // parts
    queries = [(first * size, end * size) for first, end in pairwise(ends)]
    keys = [(first // parts, -(-end // parts)) for first, end in pairwise(ends)]
    copies = [
        tuple(min(end, (head + 1) * parts) - max(first, head * parts) for head in range(*own))
        for (first, end), own in zip(pairwise(ends), keys, strict=True)
    ]
    return Heads(queries, keys, copies)
