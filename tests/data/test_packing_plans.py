"""Packing plans: every sequence once, no row above its capacity, and the rule that names the plan."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_npu.data.packing import PACKING_PLANS, first_fit, length_grouped

pytestmark = pytest.mark.sampled

CAPACITY = 32
LENGTHS = st.lists(st.integers(1, CAPACITY), max_size=60)


def filled(lengths, row):
    return sum(lengths[number] for number in row)


@pytest.mark.parametrize("name", PACKING_PLANS)
@given(lengths=LENGTHS)
def test_every_sequence_has_one_place(name, lengths):
    rows = PACKING_PLANS[name](lengths, CAPACITY)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert all(row and filled(lengths, row) <= CAPACITY for row in rows)


@given(lengths=LENGTHS)
def test_first_fit_is_the_first_row_with_room(lengths):
    expected = []
    for number, length in enumerate(lengths):
        row = next((row for row in expected if filled(lengths, row) + length <= CAPACITY), None)
        if row is None:
            expected.append(row := [])
        row.append(number)
    assert first_fit(lengths, CAPACITY) == expected


@given(lengths=LENGTHS)
def test_rows_of_grouped_lengths_do_not_overlap(lengths):
    rows = [[lengths[number] for number in row] for row in length_grouped(lengths, CAPACITY)]
    flat = [length for row in rows for length in row]
    assert flat == sorted(lengths, reverse=True)
    for row, following in itertools.pairwise(rows):
        assert sum(row) + following[0] > CAPACITY  # no row ends before it must


def test_first_fit_takes_many_sequences():
    lengths = [1 + 7919 * number % 2048 for number in range(20_000)]
    rows = first_fit(lengths, 2048)
    assert sum(lengths) / (2048 * len(rows)) > 0.95


@pytest.mark.parametrize("name", PACKING_PLANS)
@pytest.mark.parametrize("wrong", [0, CAPACITY + 1])
def test_lengths_that_fit_no_row_are_refused(name, wrong):
    with pytest.raises(ValueError, match=f"sequence 1 has {wrong} tokens, .* 1 to {CAPACITY}"):
        PACKING_PLANS[name]([3, wrong], CAPACITY)
