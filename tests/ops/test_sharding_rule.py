"""Layouts from sharding rules: which dimension of each tensor a mesh axis shards."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddle_fused.sharding.rule import Layout, Placed, ShardingRule, layout_of, numbered

pytestmark = pytest.mark.sampled

ATTENTION = ShardingRule(
    inputs={
        "query": ("batch", None, "heads", None),
        "key": ("batch", None, "heads", None),
        "bias": ("batch", "heads", None, None),
    },
    outputs=(("batch", None, "heads", None), ("batch", "heads", None, None)),
)
QUERY, KEY, BIAS = (4, 6, 8, 16), (4, 9, 4, 16), (4, 8, 6, 9)


def layout(sizes=(2,), *, rule=ATTENTION, coordinate=(), shapes=None, **splits) -> Layout:
    """Of the tensors named in ``splits``, each with the dimension that every axis splits."""
    shapes = {"query": QUERY, "key": KEY, "bias": BIAS} | (shapes or {})
    tensors = {name: Placed(shapes[name], split) for name, split in splits.items()}
    return layout_of("operator", rule, tensors, sizes, ("x", "y")[: len(sizes)], coordinate)


# ---- what an axis splits


def test_what_is_split_in_one_tensor_is_split_in_all():
    result = layout(query=(2,), key=(None,), bias=(None,))
    assert result.axes == ("heads",)
    assert [result.splits(dims) for dims in ATTENTION.inputs.values()] == [(2,), (2,), (1,)]
    assert [result.splits(dims) for dims in ATTENTION.outputs] == [(2,), (1,)]


def test_any_tensor_may_say_what_is_split():
    assert layout(query=(None,), key=(2,)).axes == ("heads",)
    assert layout(query=(None,), key=(None,), bias=(0,)).axes == ("batch",)


def test_what_has_no_name_is_not_split():
    assert layout(query=(1,), key=(3,)).axes == (None,)
    assert layout(query=(1,), key=(2,)).axes == (
        "heads",
    )  # and query, split along its tokens, is put together


def test_nothing_is_split_where_no_tensor_is():
    result = layout(query=(None,), key=(None,), coordinate=(1,))
    assert result.axes == (None,)
    assert result.splits(ATTENTION.inputs["query"]) == (None,)
    assert result.lacks(ATTENTION.inputs["query"]) == result.lacks(("batch", "heads")) == (False,)
    assert result.count("heads") == 1 and result.part("heads") == 0 and result.own("heads", 8) == slice(0, 8)


def test_axes_split_each_on_its_own():
    result = layout((2, 4), query=(0, 2), key=(None, None))
    assert result.axes == ("batch", "heads")
    assert result.splits(ATTENTION.inputs["query"]) == (0, 2)


def test_an_axis_that_splits_two_names_is_refused():
    with pytest.raises(ValueError, match=r"^operator: .* 'y' .*heads of query.* batch of key; .*reshard"):
        layout((2, 2), query=(None, 2), key=(None, 0))


def test_the_error_names_the_first_tensor_of_each_name():
    with pytest.raises(ValueError, match=r"'x' .*batch of query.* heads of key"):
        layout((2, 2), query=(0, 2), key=(2, 0))
    with pytest.raises(ValueError, match=r"'x' .*heads of query.* batch of bias"):  # the first of each
        layout(query=(2,), key=(2,), bias=(0,))


# ---- what can be split evenly


def test_what_one_tensor_cannot_split_evenly_is_not_split():
    assert layout((8,), query=(2,), bias=(None,)).axes == ("heads",)
    assert layout((8,), query=(2,), key=(None,), bias=(None,)).axes == (None,)  # key has 4 heads
    assert layout((3,), query=(0,)).axes == (None,)


def test_two_axes_split_one_dimension_into_the_product_of_their_parts():
    result = layout((2, 2), query=(2, 2), key=(2, 2), coordinate=(1, 0))
    assert result.axes == ("heads", "heads")
    assert result.splits(ATTENTION.inputs["key"]) == (2, 2)
    assert result.count("heads") == 4


def test_the_second_axis_does_not_split_what_the_first_has_used_up():
    assert layout((2, 4), query=(2, 2), bias=(None, None)).axes == ("heads", "heads")  # 8 heads
    assert layout((2, 4), query=(2, 2), key=(2, 2)).axes == ("heads", None)  # key has 4
    assert layout((3, 4), query=(2, 2), key=(2, 2)).axes == (None, "heads")


@pytest.mark.parametrize("unknown", [(-1, 6, 8, 16), (-1, -1, -1, -1)])
def test_a_size_that_is_not_known_is_taken_for_one_that_divides(unknown):
    assert layout(query=(0,), shapes={"query": unknown}).axes == ("batch",)
    assert layout(query=(None,), key=(0,), shapes={"query": unknown}).axes == ("batch",)
    # The others' sizes still count.
    assert layout((3,), query=(0,), key=(None,), shapes={"query": unknown}).axes == (None,)


def test_one_key_head_serves_the_query_heads_of_all_parts():
    shape = (4, 9, 1, 16)
    result = layout(query=(2,), key=(None,), shapes={"key": shape})
    assert result.axes == ("heads",)
    assert result.splits(ATTENTION.inputs["key"], shape) == (None,)
    assert result.lacks(ATTENTION.inputs["key"], shape) == (True,)


def test_no_elements_are_split_like_any_others():
    assert layout(query=(0,), shapes={"query": (0, 6, 8, 16)}).axes == ("batch",)


# ---- what is broadcast


def test_a_dimension_of_size_1_is_not_split():
    shape = (1, 8, 6, 9)
    result = layout(query=(0,), bias=(None,), shapes={"bias": shape})
    assert result.axes == ("batch",)
    assert result.splits(ATTENTION.inputs["bias"], shape) == (None,)
    assert result.splits(ATTENTION.inputs["bias"], BIAS) == (0,)


def test_a_dimension_of_size_1_does_not_say_what_is_split():
    shapes = {"bias": (1, 8, 6, 9)}
    assert layout(query=(None,), bias=(0,), shapes=shapes).axes == (None,)
    assert layout(query=(2,), bias=(0,), shapes=shapes).axes == ("heads",)  # nor contradicts it


def test_the_gradient_of_what_is_broadcast_is_a_sum():
    rule = ShardingRule({"x": (*numbered(2), None), "weight": (None,)}, ((*numbered(2), None),))
    result = layout(
        (2, 2), rule=rule, shapes={"x": (4, 6, 8), "weight": (8,)}, x=(0, None), weight=(None, None)
    )
    assert result.lacks(rule.inputs["x"]) == (False, False)
    assert result.lacks(rule.inputs["weight"]) == (True, False)


def test_the_gradient_along_a_dimension_of_size_1_is_a_sum():
    result = layout((2, 2), query=(0, 2), bias=(None, None), shapes={"bias": (1, 8, 6, 9)})
    assert result.lacks(ATTENTION.inputs["bias"], (1, 8, 6, 9)) == (True, False)
    assert result.lacks(ATTENTION.inputs["bias"], BIAS) == (False, False)


def test_a_result_is_a_term_only_of_what_its_rule_sums_over():
    rule = ShardingRule(
        {"x": (None, "depth"), "weight": ("depth", "columns")}, ((None, "columns"),), summed=("depth",)
    )
    shapes = {"x": (6, 8), "weight": (8, 4)}
    (dims,) = rule.outputs
    result = layout((2, 2), rule=rule, shapes=shapes, x=(1, None), weight=(0, 1))
    assert result.axes == ("depth", "columns")
    assert result.sums(dims, rule.summed) == (True, False)
    assert result.sums(dims, ()) == result.sums(("depth", "columns"), rule.summed) == (False, False)
    assert layout((2,), rule=rule, shapes=shapes, x=(None,), weight=(1,)).sums(dims, rule.summed) == (False,)


# ---- which part a process has


@pytest.mark.parametrize("row", range(2))
@pytest.mark.parametrize("column", range(3))
def test_a_process_has_the_part_of_its_coordinate(row, column):
    of_one = Layout(("heads", None), (2, 3), (row, column))
    assert (of_one.part("heads"), of_one.own("heads", 12)) == (row, slice(6 * row, 6 * row + 6))
    # The first axis splits, and the second splits its parts.
    of_two = Layout(("heads", "heads"), (2, 3), (row, column))
    number = 3 * row + column
    assert (of_two.part("heads"), of_two.own("heads", 12)) == (number, slice(2 * number, 2 * number + 2))
    assert of_two.own("batch", 5) == slice(0, 5)


# ---- any rule, however the tensors lie

SIZES = (0, 1, 2, 3, 4, 6, 8, 12, -1)


@st.composite
def calls(draw):
    """(rule, tensors, mesh sizes) in which the sizes of one name are its own, 1, a multiple or unknown."""
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    inputs, tensors = {}, {}
    for tensor in "abc"[: draw(st.integers(1, 3))]:
        dims = draw(st.lists(st.sampled_from(("p", "q", "r")), max_size=3, unique=True))
        dims = tuple(None if draw(st.booleans()) and draw(st.booleans()) else name for name in dims)
        inputs[tensor] = dims
        shape = tuple(draw(st.sampled_from(SIZES)) for _ in dims)
        of_axis = st.sampled_from((None, *range(len(dims))))
        tensors[tensor] = Placed(shape, tuple(draw(of_axis) for _ in mesh))
    return ShardingRule(inputs, ()), tensors, mesh


@given(calls())
def test_every_layout_splits_evenly_and_as_somebody_asked(call):
    rule, tensors, mesh = call
    names = tuple(f"axis {i}" for i in range(len(mesh)))
    try:
        result = layout_of("operator", rule, tensors, mesh, names)
    except ValueError as error:
        assert "paddle.distributed.reshard" in str(error)
        return
    split_dims = [set() for _ in mesh]
    for tensor, (shape, splits) in tensors.items():
        dims = rule.inputs[tensor]
        for axis, dim in enumerate(splits):
            if dim is not None and dims[dim] is not None and shape[dim] != 1:
                split_dims[axis].add(dims[dim])
        parts = [1] * len(dims)
        lacks = result.lacks(dims, shape)
        for axis, dim in enumerate(result.splits(dims, shape)):
            # Split along what the axis splits, or a part of nothing: never something else.
            assert (dim is None) == (result.axes[axis] is None or lacks[axis])
            if dim is not None:
                assert dims[dim] == result.axes[axis] and shape[dim] != 1
                parts[dim] *= mesh[axis]
        for size, count in zip(shape, parts, strict=True):
            assert size < 0 or size % count == 0
    for axis, name in enumerate(result.axes):
        assert name is None or split_dims[axis] == {name}
    for name in set(result.axes) - {None}:
        sizes = [size for size, of in zip(mesh, result.axes, strict=True) if of == name]
        assert result.count(name) == math.prod(sizes)


@given(st.lists(st.tuples(st.sampled_from((None, "p", "q")), st.integers(1, 4)), min_size=1, max_size=3))
def test_the_parts_of_all_processes_are_the_whole(axes):
    names, mesh = zip(*axes, strict=True)
    size = 2 * math.prod(mesh)
    coordinates = [()]
    for length in mesh:
        coordinates = [(*before, at) for before in coordinates for at in range(length)]
    owned = [Layout(names, mesh, coordinate).own("p", size) for coordinate in coordinates]
    count = Layout(names, mesh).count("p")
    # In the order of the mesh, each part is held by all processes that differ along other axes only.
    assert sorted({(part.start, part.stop) for part in owned}) == [
        (i * size // count, (i + 1) * size // count) for i in range(count)
    ]
