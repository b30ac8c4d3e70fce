"""grouped_matmul: one matrix product for each group of rows, and the gradient of its weight as an operator.

Shapes: T rows, K depth, N columns, E groups (experts).
"""

from __future__ import annotations

import operator

import paddle

from paddle_fused import ascend, contracts, native
from paddle_fused.devices import default_device_of, is_captured
from paddle_fused.dispatch import Backend, FusedOp
from paddle_fused.sharding import Sharding, ShardingRule

from ..arguments import check_contract_dtype, check_one_device, dtype_name, no_16_bit_on_cpu

OPERATOR = "grouped_matmul"
CUMULATIVE, COUNTS = 0, 1


def grouped_matmul(x, weight, group_list, group_list_type: int = CUMULATIVE):
    """out[r] = x[r] @ weight[g] for the rows r of group g, which follow those of group g - 1.

    The groups must cover all rows of x: CANN's documents require it, and say that rows beyond the last group
    are not written. A group may be empty; the gradient of its weight is zero. Sums are accumulated in float32
    and rounded once.

    Args:
        x: [T, K], float32, bfloat16 or float16 (float64: composed only).
        weight: [E, K, N], x's dtype.
        group_list: [E], int64 tensor or a list of integers.
        group_list_type: the meaning of group_list. 0: the row at which each group ends, the last being T.
            1: the number of rows of each group.

    Returns:
        [T, N], x's dtype. Gradients flow to x and weight.

    Raises:
        ValueError: for shapes and dtypes other than these, a group_list that decreases (type 0) or has a
            negative number (type 1), groups that do not add up to T rows, more than 1024 groups, and a last
            dimension of 65536 or more.

    Source: aclnnGroupedMatmulV4 with one tensor each and group type 0; MindSpeed's npu_gmm and npu_gmm_v2.
    """
    check_product(x, weight)
    _check_groups(group_list, group_list_type, weight.shape[0], x)
    return GROUPED_MATMUL(x, weight, group_list, int(group_list_type))


def check_product(x, weight) -> None:
    """Raises ContractError unless x [T, K] and weight [E, K, N] can be multiplied, for any groups."""
    _check_matrices(x, weight, "weight", 3)
    agree = x.shape[1] == weight.shape[1] or -1 in (x.shape[1], weight.shape[1])
    if not agree or weight.shape[0] == 0:
        came = f"x has shape {list(x.shape)} and weight {list(weight.shape)}"
        contracts.refuse("grouped_matmul.shape", OPERATOR, came)


def grouped_matmul_dweight(x, dout, group_list, group_list_type: int = CUMULATIVE):
    """dweight[g] = x_g^T @ dout_g over the rows of group g: the gradient of ``grouped_matmul``'s weight.

    CANN calls it a grouped product along K (group type 2). x [T, K], dout [T, N] -> [E, K, N]; no gradient.
    Dtypes, group_list and errors are those of ``grouped_matmul``.
    """
    _check_matrices(x, dout, "dout", 2)
    if x.shape[0] != dout.shape[0] and -1 not in (x.shape[0], dout.shape[0]):
        came = f"x has shape {list(x.shape)} and dout {list(dout.shape)}"
        contracts.refuse("grouped_matmul.shape", OPERATOR, came)
    _check_groups(group_list, group_list_type, -1, x)
    return GROUPED_MATMUL_DWEIGHT(x, dout, group_list, int(group_list_type))


def _check_matrices(x, other, name: str, rank: int) -> None:
    check_contract_dtype("grouped_matmul.dtype", OPERATOR, "x", x)
    check_contract_dtype("grouped_matmul.dtype", OPERATOR, name, other)
    check_one_device(OPERATOR, **{"x": x, name: other})
    if x.dtype != other.dtype:
        came = f"x is {dtype_name(x)} and {name} {dtype_name(other)}"
        contracts.refuse("grouped_matmul.dtype", OPERATOR, came)
    if len(x.shape) != 2 or len(other.shape) != rank:
        came = f"x has shape {list(x.shape)} and {name} {list(other.shape)}"
        contracts.refuse("grouped_matmul.shape", OPERATOR, came)
    for tensor in (x, other):
        if tensor.shape[-1] >= contracts.limit("grouped_matmul.last_dim"):
            contracts.refuse("grouped_matmul.last_dim", OPERATOR, f"a tensor has shape {list(tensor.shape)}")


def _check_groups(group_list, group_list_type, groups: int, x) -> None:
    if group_list_type not in (CUMULATIVE, COUNTS):
        came = f"group_list_type is {group_list_type!r}"
        contracts.refuse("grouped_matmul.group_list_type", OPERATOR, came)
    if _is_list(group_list):
        length, known = len(group_list), True
    else:
        integers = contracts.dtypes("grouped_matmul.group_list_dtype")
        check_contract_dtype("grouped_matmul.group_list", OPERATOR, "group_list", group_list, integers)
        check_one_device(OPERATOR, x=x, group_list=group_list)
        if len(group_list.shape) != 1:
            came = f"group_list has shape {list(group_list.shape)}"
            contracts.refuse("grouped_matmul.group_list", OPERATOR, came)
        length = group_list.shape[0]
        known = native.can_read(group_list)
    if max(length, groups) > contracts.limit("grouped_matmul.groups"):
        contracts.refuse("grouped_matmul.groups", OPERATOR, f"{max(length, groups)} groups came")
    if length != groups and -1 not in (length, groups):
        contracts.refuse("grouped_matmul.group_list", OPERATOR, f"{length} came for {groups} groups")
    if known and x.shape[0] >= 0:
        group_sizes(group_list, group_list_type, x.shape[0])


def _is_list(group_list) -> bool:
    return isinstance(group_list, (list, tuple))


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
        came = f"the groups hold {sum(sizes)} of {rows} rows"
        contracts.refuse("grouped_matmul.group_total", OPERATOR, came)
    return sizes


def _integers(group_list) -> list[int]:
    try:
        return [operator.index(value) for value in group_list]
    except TypeError:
        contracts.refuse("grouped_matmul.group_list", OPERATOR, f"group_list is {group_list}")


def _sizes_are_known(x, group_list) -> bool:
    return x.shape[0] >= 0 and (_is_list(group_list) or not is_captured(group_list))


def _composed(x, weight, group_list, group_list_type):
    experts, depth, columns = weight.shape
    matrices = [w.reshape([depth, columns]) for w in paddle.split(weight, experts)]
    if _sizes_are_known(x, group_list):
        sizes = group_sizes(group_list, group_list_type, x.shape[0])
        if any(sizes):  # kernels and gradients of several releases fail on an empty factor
            full = [expert for expert, size in enumerate(sizes) if size]
            rows = paddle.split(x, [sizes[expert] for expert in full])
            return paddle.concat(
                [paddle.matmul(part, matrices[expert]) for part, expert in zip(rows, full, strict=True)]
            )
        with default_device_of(x):
            out = paddle.zeros([0, columns], x.dtype)
        for tensor in (x, weight):  # an empty result that keeps both in the graph
            out = out if tensor.stop_gradient else out + tensor.sum()
        return out
    # A captured program knows the sizes only when it runs: each expert multiplies all rows, with zeros in
    # those of the others.
    out = None
    for rows, matrix in zip(_rows_of_each(x, group_list, group_list_type, experts), matrices, strict=True):
        part = paddle.matmul(rows, matrix)
        out = part if out is None else out + part
    return out


def _rows_of_each(x, group_list, group_list_type, experts):
    """For each group, x with zeros in the rows of the other groups."""
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
        pairs = zip(paddle.split(x, sizes), paddle.split(dout, sizes), strict=True)
        return paddle.stack([paddle.matmul(*pair, transpose_x=True) for pair in pairs])
    experts = len(group_list) if _is_list(group_list) else group_list.shape[0]
    each = _rows_of_each(x, group_list, group_list_type, experts)
    return paddle.stack([paddle.matmul(rows, dout, transpose_x=True) for rows in each])


def _composed_refuses(x, other, group_list, group_list_type):
    return no_16_bit_on_cpu(x, other)


def _as_tensor(group_list, x):
    if not _is_list(group_list):
        return group_list
    return paddle.to_tensor(group_list, dtype="int64", place=None if is_captured(x) else x.place)


def _native(x, weight, group_list, group_list_type):
    groups, wanted = _as_tensor(group_list, x), (native.wants_gradient(x), native.wants_gradient(weight))
    return native.call("pf_grouped_matmul", x, weight, groups, group_list_type, *wanted)[0]


def _native_dweight(x, dout, group_list, group_list_type):
    return native.call("pf_grouped_matmul_dweight", x, dout, _as_tensor(group_list, x), group_list_type)[0]


def _tensors(x, other, group_list) -> tuple:
    return (x, other) if _is_list(group_list) else (x, other, group_list)


def _native_refuses(x, other, group_list, group_list_type):
    if dtype_name(x) == "float64":
        return "the host kernels compute in float32, bfloat16 and float16, not in float64"
    return native.refuses(*_tensors(x, other, group_list))


def _ascend_refuses(x, other, group_list, group_list_type):
    if dtype_name(x) == "float64":
        return contracts.reason("grouped_matmul.dtype", OPERATOR, "x is float64")
    return ascend.refuses(*_tensors(x, other, group_list))


def _ascend_mode(x, other, group_list, group_list_type):
    if _sizes_are_known(x, group_list):
        return "a matmul for each group: the plugin has no grouped one"
    return (
        "a matmul of all rows for each group, as their sizes are not known yet: the plugin has no grouped one"
    )


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
    ascend=Backend(_composed, _ascend_refuses, _ascend_mode),
    native=Backend(_native, _native_refuses, "pf_grouped_matmul"),
    composed=Backend(_composed, _composed_refuses),
    sharding=Sharding(("x", "weight", "group_list", "group_list_type"), _sharding_rule),
)
GROUPED_MATMUL_DWEIGHT = FusedOp(
    "grouped_matmul_dweight",
    ascend=Backend(_composed_dweight, _ascend_refuses, _ascend_mode),
    native=Backend(_native_dweight, _native_refuses, "pf_grouped_matmul_dweight"),
    composed=Backend(_composed_dweight, _composed_refuses),
    sharding=Sharding(("x", "dout", "group_list", "group_list_type"), _sharding_rule_dweight),
)
