"""Which sequences share a row: packing plans over known lengths.

A plan is a list of rows, a row the numbers of the sequences in it, whose lengths add up to ``capacity`` at
most. It depends on the lengths alone: every process, and a run that is continued, makes the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_npu.core.errors import UserError


def one_each(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Each sequence alone. Errors: as `first_fit`."""
    _check(lengths, capacity)
    return [[number] for number in range(len(lengths))]


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Each sequence, in order, into the first row that has room for it; a new one where none has.

    At most 1.7 times the rows of the best plan (Johnson et al., 1974), in O(n log n): a binary tree over the
    rows holds the most room below each node, and the way down finds the first row.
    Errors: ValueError for a length below 1 or above ``capacity``.
    """
    _check(lengths, capacity)
    leaves = 1 << max(0, len(lengths) - 1).bit_length()
    room = [capacity] * (2 * leaves)  # of node k the children are 2k and 2k + 1, of row r the leaf leaves + r
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
    """Sequences of about the same length share a row: from the longest on, as many as fit.

    Leaves more room empty than `first_fit`, but a row's sequences give the attention blocks of equal work.
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
                f"sequence {number} has {length} tokens, but a row takes 1 to {capacity}; cut it first"
            )
