"""What an axis of a mesh splits in a call, from a rule and from how the tensors lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_fused.sharding import Layout, Rule, numbered
from paddle_fused.sharding.rule import Placed, layout_of

HEADS = ("batch", None, "heads", None)
ATTENTION = Rule({"query": HEADS, "key": HEADS}, (HEADS,))


def layout(rule, tensors, sizes=(2,), coordinate=(0,)):
    placed = {name: Placed(tuple(shape), tuple(splits)) for name, (shape, splits) in tensors.items()}
    return layout_of("operator", rule, placed, sizes, ["dp", "mp"][: len(sizes)], coordinate)


def test_the_first_tensor_that_is_split_decides():
    found = layout(ATTENTION, {"query": ((2, 8, 4, 16), (2,)), "key": ((2, 8, 2, 16), (None,))})
    assert found.axes == ("heads",)
    assert found.splits(HEADS, (2, 8, 2, 16)) == (2,)


def test_one_axis_splits_one_thing():
    tensors = {"query": ((2, 8, 4, 16), (2,)), "key": ((2, 8, 4, 16), (0,))}
    with pytest.raises(ValueError, match="axis 'dp' splits heads of query, but batch of key"):
        layout(ATTENTION, tensors)


@pytest.mark.parametrize(
    ("query", "key", "splits", "axes"),
    [
        ((2, 8, 3, 16), (2, 8, 3, 16), (2,), (None,)),  # three heads
        ((2, 8, 4, 16), (2, 8, 1, 16), (2,), ("heads",)),  # one key head serves all
        ((2, 8, 6, 16), (2, 8, 3, 16), (2,), (None,)),  # three key heads
        ((2, 8, 4, 16), (2, 8, 4, 16), (1,), (None,)),  # tokens are never split
        ((-1, 8, 4, 16), (-1, 8, 4, 16), (0,), ("batch",)),  # not known yet
        ((1, 8, 4, 16), (1, 8, 4, 16), (0,), (None,)),
    ],
)
def test_what_can_be_split(query, key, splits, axes):
    assert layout(ATTENTION, {"query": (query, splits), "key": (key, splits)}).axes == axes


def test_two_axes_may_split_one_dimension():
    tensors = {"query": ((8, 8, 4, 16), (0, 0)), "key": ((8, 8, 4, 16), (0, 0))}
    found = layout(ATTENTION, tensors, sizes=(2, 4), coordinate=(1, 2))
    assert found.axes == ("batch", "batch")
    assert found.count("batch") == 8 and found.part("batch") == 6 and found.own("batch", 16) == slice(12, 14)
    tensors = dict.fromkeys(tensors, ((4, 8, 4, 16), (0, 0)))
    assert layout(ATTENTION, tensors, sizes=(2, 4)).axes == ("batch", None)  # 4 is no multiple of 8


def test_what_a_tensor_lacks():
    found = Layout(("rows", None), (2, 2))
    assert found.lacks((None,)) == (True, False)
    assert found.lacks(("rows", None), (1, 8)) == (True, False)  # broadcast
    assert found.lacks(("rows", None), (4, 8)) == (False, False)
    depth = Layout(("depth",), (2,))
    assert depth.sums(("rows", "columns"), ("depth",)) == (True,)
    assert depth.sums(("rows", "columns"), ()) == (False,)  # the same on every process
    assert depth.sums(("rows", "depth"), ("depth",)) == (False,)


@given(st.data())
def test_every_tensor_is_split_evenly(data):
    """Whatever lies however: a layout never splits a dimension into parts of different sizes."""
    rank = data.draw(st.integers(1, 3))
    sizes = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    names = numbered(rank)
    rule = Rule({"a": names, "b": names[1:]}, (names,))
    shape = data.draw(st.lists(st.integers(1, 12), min_size=rank, max_size=rank))
    split = st.one_of(st.none(), st.integers(0, rank - 1))
    tensors = {"a": (shape, data.draw(st.tuples(split, split))), "b": (shape[1:], (None, None))}
    found = layout(rule, tensors, sizes)
    for name, size in zip(names, shape, strict=True):
        assert size % found.count(name) == 0
    for of, (of_shape, _) in tensors.items():
        for axis, dim in enumerate(found.splits(rule.inputs[of], of_shape)):
            assert dim is None or rule.inputs[of][dim] == found.axes[axis]
