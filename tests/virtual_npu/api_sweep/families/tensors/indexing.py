"""Gather, scatter, masks and subscripts."""

from api_sweep.case import case, strided, to_static, vary
from api_sweep.inputs import booleans, constant, exactly, integers, normal, permutation

GATHERING = [
    case("gather", normal(5, 4), integers(5, 7), axis=0),
    case("gather", normal(5, 4), integers(4, 3, dtype="int32"), axis=1).named("axis"),
    case("gather_nd", normal(3, 4, 2), exactly([[0, 1], [2, 3], [0, 1]], "int64")),
    case("index_select", normal(5, 4), integers(4, 6), axis=1),
    case("index_sample", normal(5, 4), integers(4, 5, 3)),
    case("take", normal(3, 4), integers(12, 2, 3)),
    case("take_along_axis", normal(3, 4), integers(4, 3, 2), axis=1),
    case("masked_select", normal(3, 4), exactly([[1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 0, 0]], "bool")),
    case("slice", normal(4, 5), axes=[0, 1], starts=[1, 0], ends=[3, 4]),
    case("strided_slice", normal(6, 5), axes=[0, 1], starts=[1, 4], ends=[6, 0], strides=[2, -1]),
    case("narrow", normal(4, 5), 1, 1, 3),
    case("nonzero", booleans(3, 4)),
    case("argwhere", booleans(3, 4)),
]
SCATTERING = [
    case("scatter", normal(5, 4), exactly([1, 3, 0], "int64"), normal(3, 4)),
    case("scatter", normal(5, 4), exactly([1, 3, 1], "int64"), normal(3, 4), overwrite=False).named("add"),
    case("scatter_nd", exactly([[1], [3], [1]], "int64"), normal(3, 4), [5, 4]),
    case("scatter_nd_add", normal(5, 4), exactly([[1], [3], [1]], "int64"), normal(3, 4)),
    case("put_along_axis", normal(3, 4), integers(4, 3, 1), normal(3, 1), 1),
    case("put_along_axis", normal(3, 4), integers(4, 3, 2), normal(3, 2), 1, reduce="add").named("add"),
    case("index_add", normal(5, 4), integers(5, 3), 0, normal(3, 4)),
    case("index_put", normal(5, 4), (exactly([0, 3], "int64"), exactly([1, 2], "int64")), normal(2)),
    case("index_fill", normal(5, 4), exactly([0, 3], "int64"), 0, 2.5),
    case("masked_fill", normal(3, 4), booleans(3, 4), 0.5),
    case("masked_scatter", normal(3, 4), booleans(3, 4), normal(12)),
    case("select_scatter", normal(3, 4), normal(4), 0, 1),
    case("slice_scatter", normal(5, 4), normal(2, 4), axes=[0], starts=[1], ends=[5], strides=[2]),
    case("diagonal_scatter", normal(4, 4), constant(normal(4))),
]
IN_PLACE = [
    case("Tensor.scatter_", normal(5, 4), exactly([1, 3, 0], "int64"), normal(3, 4)),
    case("Tensor.put_along_axis_", normal(3, 4), integers(4, 3, 1), normal(3, 1), 1),
    case("Tensor.index_add_", normal(5, 4), integers(5, 3), 0, normal(3, 4)),
    case("Tensor.index_put_", normal(5, 4), (permutation(5), exactly([1] * 5, "int64")), normal(5)),
    case("Tensor.index_fill_", normal(5, 4), exactly([0, 3], "int64"), 0, 2.5),
    case("Tensor.masked_fill_", normal(3, 4), booleans(3, 4), 0.5),
    case("Tensor.masked_scatter_", normal(3, 4), booleans(3, 4), normal(12)),
]


def _get(key):
    return lambda get, x: get(x, key)


def _set(key):
    """Assignment to a subscript of a copy; the copy is the output."""

    def call(setter, x, value):
        target = x * 1.0
        setter(target, key, value)
        return target

    return call


GET = {
    "number": 1,
    "negative": (-1, -2),
    "slice": (slice(1, 4), slice(None, None, 2)),
    "reversed": (slice(None, None, -1),),
    "ellipsis": (..., 1),
    "new axis": (slice(None), None, 2),
    "list": ([0, 3, 0],),
    "lists": ([0, 3], [1, 2]),
    "mixed": (slice(1, 3), [0, 2]),
    "empty": (slice(2, 2),),
}
SUBSCRIPTS = [
    *(case("Tensor.__getitem__", normal(5, 4)).via(_get(key)).named(name) for name, key in GET.items()),
    case("Tensor.__getitem__", normal(5, 4), booleans(5, 4)).named("mask"),
    case("Tensor.__getitem__", normal(5, 4), integers(5, 2, 3)).named("index tensor"),
    case("Tensor.__setitem__", normal(5, 4), normal(4)).via(_set(1)).named("number"),
    case("Tensor.__setitem__", normal(5, 4), normal(2, 4)).via(_set((slice(1, 5, 2),))).named("slice"),
    case("Tensor.__setitem__", normal(5, 4), normal(2)).via(_set(([0, 3], [1, 2]))).named("lists"),
    case("Tensor.__setitem__", normal(5, 4), constant(normal())).via(_set(slice(0, 2))).named("0-d value"),
]

DYGRAPH_ONLY = ["paddle.narrow[to_static]"]

CASES = [
    *vary(GATHERING, strided, to_static, skip=DYGRAPH_ONLY),
    *vary(SCATTERING, strided, to_static),
    *IN_PLACE,
    *SUBSCRIPTS,
]
