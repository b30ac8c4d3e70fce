"""Shape, order and layout."""

from api_sweep.case import case, strided, to_static, vary
from api_sweep.inputs import constant, exactly, integers, normal

ONE_INPUT = [
    case("reshape", normal(3, 4, 2), [2, -1]),
    case("reshape", normal(3, 4, 2), exactly([4, 6], "int32")).named("shape tensor"),
    case("flatten", normal(3, 4, 2), start_axis=1),
    case("ravel", normal(3, 4)),
    case("unflatten", normal(3, 4), 1, [2, 2]),
    case("view", normal(3, 4), [2, 6]),
    case("view_as", normal(3, 4), constant(normal(2, 6))),
    case("squeeze", normal(3, 1, 2, 1), axis=1),
    case("unsqueeze", normal(3, 4), axis=[0, 2]),
    case("transpose", normal(3, 4, 2), [2, 0, 1]),
    case("t", normal(3, 4)),
    case("permute", normal(3, 4, 2), [1, 2, 0]),
    case("moveaxis", normal(3, 4, 2), 0, 2),
    case("swapaxes", normal(3, 4, 2), 0, 1),
    case("swapdims", normal(3, 4, 2), 1, 2),
    case("matrix_transpose", normal(3, 4, 2)),
    case("flip", normal(3, 4), axis=[0, 1]),
    case("reverse", normal(3, 4), axis=1),
    case("rot90", normal(3, 4), k=1),
    case("roll", normal(3, 4), shifts=[1, -2], axis=[0, 1]),
    case("expand", normal(3, 1, 2), [2, 3, 4, 2]),
    case("expand_as", normal(3, 1), constant(normal(2, 3, 4))),
    case("broadcast_to", normal(4), [3, 4]),
    case("tile", normal(3, 4), [2, 1, 3]),
    case("repeat_interleave", normal(3, 4), 2, axis=1),
    case("repeat_interleave", normal(3, 4), exactly([1, 0, 3], "int32"), axis=0).named("repeats tensor"),
    case("tril", normal(4, 5), diagonal=-1),
    case("triu", normal(4, 5), diagonal=1),
    case("diag", normal(4), offset=1),
    case("diag", normal(4, 5)).named("matrix"),
    case("diagflat", normal(2, 3), offset=-1),
    case("diag_embed", normal(3, 4), offset=1).forward_only(),
    case("diagonal", normal(3, 4, 5), offset=1, axis1=1, axis2=2),
    case("split", normal(3, 6), [1, 2, 3], axis=1),
    case("tensor_split", normal(3, 7), 3, axis=1),
    case("hsplit", normal(3, 4), 2),
    case("vsplit", normal(4, 3), 2),
    case("dsplit", normal(2, 3, 4), 2),
    case("chunk", normal(3, 6), 3, axis=1),
    case("unbind", normal(3, 4), axis=1),
    case("unstack", normal(3, 4), axis=0),
    case("crop", normal(5, 6), shape=[2, 3], offsets=[1, 2]),
    case("as_strided", normal(4, 6), [2, 3], [6, 2], 1),
    case("Tensor.unfold", normal(3, 7), 1, 3, 2),
    case("unfold", normal(3, 7), 1, 3, 2),
    case("atleast_1d", normal()),
    case("atleast_2d", normal(4)),
    case("atleast_3d", normal(3, 4)),
    case("vander", normal(4), n=3),
    case("combinations", normal(5), r=2),
    case("nn.functional.pad", normal(2, 3, 4, 5), [1, 2, 0, 1], value=0.5),
    case("nn.functional.pad", normal(2, 3, 4, 5), [1, 2, 0, 1], mode="reflect").named("reflect"),
    case("nn.functional.pad", normal(2, 3, 4, 5), [1, 2, 0, 1], mode="replicate").named("replicate"),
    case("nn.functional.pad", normal(2, 3, 4, 5), [1, 2, 0, 1], mode="circular").named("circular"),
    case("nn.functional.zeropad2d", normal(2, 3, 4, 5), [1, 2, 0, 1]),
    case("shard_index", integers(20, 6, 1), 20, 2, 0, -1),
]
JOINING = [
    case("concat", [normal(3, 2), normal(3, 4)], axis=1),
    case("concat", [normal(0, 4), normal(3, 4)]).named("empty"),
    case("stack", [normal(3, 4), normal(3, 4)], axis=1),
    case("hstack", [normal(3, 2), normal(3, 4)]),
    case("vstack", [normal(2, 4), normal(3, 4)]),
    case("dstack", [normal(3, 4), normal(3, 4)]),
    case("column_stack", [normal(3), normal(3, 4)]),
    case("row_stack", [normal(4), normal(3, 4)]),
    case("block_diag", [normal(2, 3), normal(1, 2)]),
    case("meshgrid", normal(3), normal(4)),
    case("cartesian_prod", [normal(3), normal(2)]),
]
IN_PLACE = [
    case("Tensor.reshape_", normal(3, 4), [2, 6]),
    case("Tensor.squeeze_", normal(3, 1, 4), 1),
    case("Tensor.unsqueeze_", normal(3, 4), 1),
    case("Tensor.flatten_", normal(3, 4)),
    case("Tensor.transpose_", normal(3, 4), [1, 0]),
    case("Tensor.tril_", normal(4, 5)),
    case("Tensor.triu_", normal(4, 5)),
    case("Tensor.fill_diagonal_", normal(4, 5), 2.5),
    case("Tensor.fill_diagonal_tensor", normal(4, 5), constant(normal(4))),
]

NO_VIEW = [f"paddle.{name}[strided]" for name in ("view", "view_as")]  # a transposed tensor cannot be viewed
DYGRAPH_ONLY = [
    f"paddle.{name}[to_static]" for name in ("view", "view_as", "as_strided", "unfold", "Tensor.unfold")
]

CASES = [
    *vary(ONE_INPUT, strided, to_static, skip=NO_VIEW + DYGRAPH_ONLY),
    *vary(JOINING, strided, to_static),
    *IN_PLACE,
    case("broadcast_shape", [3, 1], [1, 4]),
]
