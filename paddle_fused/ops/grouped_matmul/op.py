"""grouped_matmul: one matmul per group of rows, and the gradient of its weight as an operator.

Shapes: T rows, K depth, N columns, E groups (experts).
"""

from __future__ import annotations

import operator

import paddle

from paddle_fused import ascend, contracts, native, paddle_release
from paddle_fused.devices import is_captured
from paddle_fused.dispatch import Backend, FusedOp
from paddle_fused.sharding import Sharding, ShardingRule, is_split

from ..arguments import check_contract_dtype, check_one_device, dtype_name, no_16_bit_on_cpu

OPERATOR = "grouped_matmul"
CUMULATIVE, COUNTS = 0, 1


def grouped_matmul(x, weight, group_list, group_list_type: int = CUMULATIVE):
    """out[r] = x[r] @ weight[g] for the rows r of group g. Groups are consecutive rows, in order.

    The groups must cover all rows of x. The CANN documentation requires this, and states that rows after the
    last group are not written. A group may be empty; its weight then has a zero gradient. Sums are
    accumulated in float32 and rounded once.

    Args:
        x: [T, K], float32, bfloat16 or float16 (float64: composed only).
        weight: [E, K, N], or a list of E tensors [K, N], which are not copied; x's dtype.
        group_list: [E], int64 tensor or a list of integers.
        group_list_type: 0 if group_list has the row at which each group ends (the last one is T), 1 if it has
            the number of rows of each group.

    Returns:
        [T, N], x's dtype. Gradients flow to x and weight.

    Raises:
        ValueError: for other shapes and dtypes, a group_list that decreases (type 0) or has a negative number
            (type 1), groups that do not add up to T rows, more than 1024 groups, more than 128 tensors in a
            list, and a last dimension of 65536 or more.

    Source: aclnnGroupedMatmulV4 with one x, one weight or a list, and group type 0; MindSpeed's npu_gmm and
    npu_gmm_v2.
    """
    if _is_list(weight):
        groups = _check_list(x, weight)
        if any(map(is_split, (x, *weight))):  # the sharding rule has one weight
            weight = paddle.stack(weight)
    else:
        _check_product(x, weight, "weight", 3)
        groups = weight.shape[0]
        if groups == 0:
            _refuse_shapes(x, weight, "weight")
    _check_groups(group_list, group_list_type, groups, x)
    return GROUPED_MATMUL(x, weight, group_list, int(group_list_type))


def _check_list(x, weights) -> int:
    """The number of ``weights``. Raises ContractError if rows of x cannot be multiplied by one of them."""
    if not 1 <= len(weights) <= contracts.limit("grouped_matmul.list"):
        contracts.refuse("grouped_matmul.list", OPERATOR, f"weight has {len(weights)} tensors")
    for number, matrix in enumerate(weights):
        name = f"weight[{number}]"
        _check_product(x, matrix, name, 2)
        if list(matrix.shape) != list(weights[0].shape):
            _refuse_shapes(weights[0], matrix, name, "weight[0]")
    return len(weights)


def _check_product(x, weight, name: str, rank: int) -> None:
    _check_matrices(x, weight, name, rank)
    depth = weight.shape[-2]
    if x.shape[1] != depth and -1 not in (x.shape[1], depth):
        _refuse_shapes(x, weight, name)


def _refuse_shapes(x, other, name: str, of_x: str = "x"):
    received = f"{of_x} has shape {list(x.shape)} and {name} {list(other.shape)}"
    contracts.refuse("grouped_matmul.shape", OPERATOR, received)


def grouped_matmul_dweight(x, dout, group_list, group_list_type: int = CUMULATIVE):
    """dweight[g] = x_g^T @ dout_g over the rows of group g: the gradient of ``grouped_matmul``'s weight.
    In CANN it is a grouped matmul along K (group type 2). x [T, K], dout [T, N] -> [E, K, N]; not
    differentiable. Dtypes, group_list and errors are the same as in ``grouped_matmul``.
    Dtypes, group_list and errors are the same as in ``grouped_matmul``.
    """
    _check_matrices(x, dout, "dout", 2)
    if x.shape[0] != dout.shape[0] and -1 not in (x.shape[0], dout.shape[0]):
        _refuse_shapes(x, dout, "dout")
    _check_groups(group_list, group_list_type, -1, x)
    return GROUPED_MATMUL_DWEIGHT(x, dout, group_list, int(group_list_type))


def _check_matrices(x, other, name: str, rank: int) -> None:
    check_contract_dtype("grouped_matmul.dtype", OPERATOR, "x", x)
    check_contract_dtype("grouped_matmul.dtype", OPERATOR, name, other)
    check_one_device(OPERATOR, **{"x": x, name: other})
    if x.dtype != other.dtype:
        received = f"x is {dtype_name(x)} and {name} {dtype_name(other)}"
        contracts.refuse("grouped_matmul.dtype", OPERATOR, received)
    if len(x.shape) != 2 or len(other.shape) != rank:
        _refuse_shapes(x, other, name)
    for tensor in (x, other):
        if tensor.shape[-1] >= contracts.limit("grouped_matmul.last_dim"):
            contracts.refuse("grouped_matmul.last_dim", OPERATOR, f"a tensor has shape {list(tensor.shape)}")


def _check_groups(group_list, group_list_type, groups: int, x) -> None:
    if group_list_type not in (CUMULATIVE, COUNTS):
        received = f"group_list_type is {group_list_type!r}"
        contracts.refuse("grouped_matmul.group_list_type", OPERATOR, received)
    if _is_list(group_list):
        length, known = len(group_list), True
    else:
        integers = contracts.dtypes("grouped_matmul.group_list_dtype")
        check_contract_dtype("grouped_matmul.group_list", OPERATOR, "group_list", group_list, integers)
        check_one_device(OPERATOR, x=x, group_list=group_list)
        if len(group_list.shape) != 1:
            received = f"group_list has shape {list(group_list.shape)}"
            contracts.refuse("grouped_matmul.group_list", OPERATOR, received)
        length = group_list.shape[0]
        known = native.can_read(group_list)
    if max(length, groups) > contracts.limit("grouped_matmul.groups"):
        contracts.refuse("grouped_matmul.groups", OPERATOR, f"there are {max(length, groups)} groups")
    if length != groups and -1 not in (length, groups):
        contracts.refuse("grouped_matmul.group_list", OPERATOR, f"length {length} for {groups} groups")
    if known and x.shape[0] >= 0:
        group_sizes(group_list, group_list_type, x.shape[0])


def _is_list(argument) -> bool:
    return isinstance(argument, (list, tuple))


def group_sizes(group_list, group_list_type: int, rows: int) -> list[int]:
    """The number of rows of each group. Raises ContractError unless they add up to ``rows``."""
    values = _integers(group_list) if _is_list(group_list) else group_list.tolist()
    if group_list_type == COUNTS:
        sizes = values
    else:
        sizes = [end - begin for begin, end in zip([0, *values], values, strict=False)]
    if any(size < 0 for size in sizes):
        contracts.refuse("grouped_matmul.group_order", OPERATOR, f"group_list is {values}")
    if sum(sizes) != rows:
        received = f"the groups cover {sum(sizes)} of {rows} rows"
        contracts.refuse("grouped_matmul.group_total", OPERATOR, received)
    return sizes


def _integers(group_list) -> list[int]:
    try:
        return [operator.index(value) for value in group_list]
    except TypeError:
        contracts.refuse("grouped_matmul.group_list", OPERATOR, f"group_list is {group_list}")


def _sizes_are_known(x, group_list) -> bool:
    return x.shape[0] >= 0 and (_is_list(group_list) or not is_captured(group_list))


def _composed(x, weight, group_list, group_list_type):
    matrices = weight if _is_list(weight) else _matrices_of(weight)
    if not _sizes_are_known(x, group_list):
        return _composed_of_program(x, weight, matrices, group_list, group_list_type)
    sizes = group_sizes(group_list, group_list_type, x.shape[0])
    rows = iter(paddle.split(x, [size for size in sizes if size])) if any(sizes) else iter(())
    learns = paddle.is_grad_enabled()
    # Kernels and gradients of several releases fail on an empty factor. The product with zero rows of a
    # matrix is empty and gives the matrix a zero gradient.
    parts = [
        paddle.matmul(next(rows), matrix) if size else matrix[:0]
        for size, matrix in zip(sizes, matrices, strict=True)
        if size or (learns and not matrix.stop_gradient)
    ]
    out = paddle_release.concat(parts or [matrices[0].detach()[:0]])
    if any(sizes) or x.stop_gradient:
        return out
    return out + x.sum().astype(out.dtype)  # keeps an empty x in the graph; auto_cast sums in float32


def _matrices_of(weight) -> list:
    experts, depth, columns = weight.shape
    return [matrix.reshape([depth, columns]) for matrix in paddle.split(weight, experts)]


def _composed_of_program(x, weight, matrices, group_list, group_list_type):
    """For a captured program, where the sizes are known only at run time."""
    groups = len(matrices)
    if not _has_frozen_factor(x, weight):
        parts = paddle.split(x, _sizes_in_program(group_list, group_list_type, groups))
        products = [paddle.matmul(*pair) for pair in zip(parts, matrices, strict=True)]
        return paddle.concat(products)
    out = None
    rows_of_each = _rows_of_each(x, group_list, group_list_type, groups)
    for rows, matrix in zip(rows_of_each, matrices, strict=True):
        part = paddle.matmul(rows, matrix)
        out = part if out is None else out + part
    return out


def _has_frozen_factor(x, weight) -> bool:
    """Whether only some factors are trainable. The gradient of matmul then fails if one is empty."""
    return len({tensor.stop_gradient for tensor in (x, *_listed(weight))}) > 1


def _sizes_in_program(group_list, group_list_type, groups: int) -> list:
    if _is_list(group_list):
        group_list = paddle.to_tensor(group_list, dtype="int64")
    if group_list_type == CUMULATIVE:
        before = paddle.concat([paddle.zeros([1], "int64"), group_list[:-1]])
        group_list = group_list - before
    return paddle.split(group_list, groups)


def _listed(weight) -> tuple:
    return tuple(weight) if _is_list(weight) else (weight,)


def _rows_of_each(x, group_list, group_list_type, experts):
    """For each group, x with zeros in the rows of all other groups."""
    if _is_list(group_list):
        group_list = paddle.to_tensor(group_list, dtype="int64")
    ends = paddle.cumsum(group_list) if group_list_type == COUNTS else group_list
    row, nothing = paddle.arange(0, paddle.shape(x)[0], dtype="int64"), paddle.zeros_like(x)
    begin = paddle.zeros([1], "int64")
    for end in paddle.split(ends, experts):
        mine = paddle.logical_and(row >= begin, row < end)
        yield paddle.where(mine.unsqueeze(-1), x, nothing)
        begin = end


def _composed_dweight(x, dout, group_list, group_list_type):
    if _sizes_are_known(x, group_list):
        sizes = group_sizes(group_list, group_list_type, x.shape[0])
    else:
        groups = len(group_list) if _is_list(group_list) else group_list.shape[0]
        sizes = _sizes_in_program(group_list, group_list_type, groups)
    pairs = zip(paddle.split(x, sizes), paddle.split(dout, sizes), strict=True)
    return paddle.stack([paddle.matmul(*pair, transpose_x=True) for pair in pairs])


def _composed_unsupported(x, other, group_list, group_list_type):
    return no_16_bit_on_cpu(x, *_listed(other))


def _as_tensor(group_list, x):
    if not _is_list(group_list):
        return group_list
    return paddle.to_tensor(group_list, dtype="int64", place=None if is_captured(x) else x.place)


def _native(x, weight, group_list, group_list_type):
    factors, groups = [x, *_listed(weight)], _as_tensor(group_list, x)
    wanted = (native.wants_gradient(x), any(map(native.wants_gradient, factors[1:])))
    return native.call("pf_grouped_matmul", factors, groups, group_list_type, *wanted)[0]


def _native_dweight(x, dout, group_list, group_list_type):
    return native.call("pf_grouped_matmul_dweight", x, dout, _as_tensor(group_list, x), group_list_type)[0]


def _tensors(x, other, group_list) -> tuple:
    return (x, *_listed(other), *(() if _is_list(group_list) else (group_list,)))


def _native_unsupported(x, other, group_list, group_list_type):
    if dtype_name(x) == "float64":
        return "the host kernels do not support float64"
    return native.unsupported_reason(*_tensors(x, other, group_list))


def _ascend_unsupported(x, other, group_list, group_list_type):
    if dtype_name(x) == "float64":
        return contracts.reason("grouped_matmul.dtype", OPERATOR, "x is float64")
    return ascend.unsupported_reason(*_tensors(x, other, group_list))


_BY_GROUP = "one matmul per group: the plugin has no grouped matmul"
_OF_ALL_ROWS = (
    "one matmul of all rows per group, because one factor is frozen: the plugin has no grouped matmul"
)


def _ascend_mode(x, weight, group_list, group_list_type):
    known = _sizes_are_known(x, group_list) or not _has_frozen_factor(x, weight)
    return _BY_GROUP if known else _OF_ALL_ROWS


def _groups(group_list) -> dict:
    return {} if _is_list(group_list) else {"group_list": (None,)}


def _sharding_rule(x, weight, group_list, group_list_type) -> ShardingRule:
    inputs = {"x": (None, "depth"), "weight": (None, "depth", "columns"), **_groups(group_list)}
    return ShardingRule(inputs, ((None, "columns"),), summed=("depth",), yielding=("weight",))


def _sharding_rule_dweight(x, dout, group_list, group_list_type) -> ShardingRule:
    inputs = {"x": (None, "depth"), "dout": (None, "columns"), **_groups(group_list)}
    return ShardingRule(inputs, ((None, "depth", "columns"),))


GROUPED_MATMUL = FusedOp(
    OPERATOR,
    ascend=Backend(_composed, _ascend_unsupported, _ascend_mode),
    native=Backend(_native, _native_unsupported, "pf_grouped_matmul"),
    composed=Backend(_composed, _composed_unsupported),
    sharding=Sharding(("x", "weight", "group_list", "group_list_type"), _sharding_rule),
)
GROUPED_MATMUL_DWEIGHT = FusedOp(
    "grouped_matmul_dweight",
    ascend=Backend(_composed_dweight, _ascend_unsupported, _BY_GROUP),
    native=Backend(_native_dweight, _native_unsupported, "pf_grouped_matmul_dweight"),
    composed=Backend(_composed_dweight, _composed_unsupported),
    sharding=Sharding(("x", "dout", "group_list", "group_list_type"), _sharding_rule_dweight),
)
