"""Packing plans: the assignment of sequences of known lengths to rows.

A plan is a list of rows; a row lists the indices of its sequences, whose lengths sum to at most ``capacity``.
It depends on the lengths only, so every process, and a resumed run, computes the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_npu.core.errors import UserError


def one_each(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """One sequence per row. Errors: as `first_fit`."""
    _check(lengths, capacity)
    return [[number] for number in range(len(lengths))]


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """First fit: each sequence, in order, goes into the first row with enough room, or into a new row.

    At most 1.7 times the rows of the best plan (Johnson et al., 1974), in O(n log n): a binary tree over the
    rows stores the largest free room below each node, and the descent finds the first row. Errors: ValueError
    for a length below 1 or above ``capacity``.
    """
    _check(lengths, capacity)
    leaves = 1 << max(0, len(lengths) - 1).bit_length()
    room = [capacity] * (2 * leaves)  # children of node k: 2k and 2k + 1; leaf of row r: leaves + r
    rows: list[list[int]] = [[] for _ in lengths]
    for number, length in enumerate(lengths):
        node = 1
        while node < leaves:
            node *= 2
            node += room[node] < length
        rows[node - leaves].append(number)
        room[node] -= length
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return [row for row in rows if row]


def length_grouped(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Sequences of similar length share a row: sorted by length, longest first, as many as fit.

    Leaves more free room than `first_fit`, but the sequences of a row give attention blocks of equal work.
    Errors: as `first_fit`.
    """
    _check(lengths, capacity)
    rows: list[list[int]] = []
    room = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if lengths[number] > room:
            rows.append([])
            room = capacity
        rows[-1].append(number)
        room -= lengths[number]
    return rows


PLANS: dict[str, Callable[[Sequence[int], int], list[list[int]]]] = {
    "none": one_each,
    "first_fit": first_fit,
    "length_grouped": length_grouped,
}


def _check(lengths: Sequence[int], capacity: int) -> None:
    for number, length in enumerate(lengths):
        if not 1 <= length <= capacity:
            raise UserError(
                f"sequence {number} has {length} tokens, but a row takes 1 to {capacity}; truncate it first"
            )
