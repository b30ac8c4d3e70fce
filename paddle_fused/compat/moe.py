"""torch_npu's mixture-of-experts operators, with its names, argument order and defaults.

Shapes: T tokens or rows, H hidden size, K experts per token (of a matrix: its depth), N columns, E groups.
"""

from __future__ import annotations

import math

import paddle

from .. import contracts
from ..dispatch import name_of
from ..ops.arguments import check_contract_dtype, check_ints, check_one_device, dtype_name, same_shape
from ..ops.grouped_matmul.op import COUNTS, CUMULATIVE, group_sizes, grouped_matmul, grouped_matmul_dweight
from ..ops.moe_token_permute.op import moe_token_permute
from ..ops.moe_token_unpermute.op import moe_token_unpermute

ONE_RESULT = (2, 3)  # values of split_item
ROWS, DEPTH, UNGROUPED = 0, 2, -1  # values of group_type
_GMM = "npu_grouped_matmul"
_MOST_DIMENSIONS = {"x": 6, "weight": 3}


def npu_moe_token_permute(tokens, indices, num_out_tokens=None, padded_mode=False):
    """``paddle_fused.moe_token_permute``. Rejects padded_mode=True, as a card does."""
    _refuse_padding("npu_moe_token_permute", padded_mode)
    check_contract_dtype(
        "moe.dtype", "npu_moe_token_permute", "tokens", tokens, contracts.dtypes("moe.dtype")
    )
    return moe_token_permute(tokens, indices, num_out_tokens)


def npu_moe_token_unpermute(
    permuted_tokens, sorted_indices, probs=None, padded_mode=False, restore_shape=None
):
    """``paddle_fused.moe_token_unpermute``. Rejects padded_mode=True.

    restore_shape is an argument of padded_mode; accepted are None and the result's shape.
    """
    _refuse_padding("npu_moe_token_unpermute", padded_mode)
    operator, dtypes = "npu_moe_token_unpermute", contracts.dtypes("moe.dtype")
    check_contract_dtype("moe.dtype", operator, "permuted_tokens", permuted_tokens, dtypes)
    out = moe_token_unpermute(permuted_tokens, sorted_indices, probs)
    if restore_shape is not None and not same_shape(
        check_ints(operator, "restore_shape", restore_shape), out.shape
    ):
        raise ValueError(
            f"{operator}: restore_shape is {list(restore_shape)}; accepted: None, or the result's shape "
            f"{list(out.shape)}. Only padded_mode uses restore_shape; omit it."
        )
    return out


def _refuse_padding(operator: str, padded_mode) -> None:
    if padded_mode:
        contracts.refuse("moe.padded_mode", operator, f"padded_mode is {padded_mode}")


def npu_grouped_matmul(
    x,
    weight,
    *,
    bias=None,
    scale=None,
    offset=None,
    antiquant_scale=None,
    antiquant_offset=None,
    per_token_scale=None,
    group_list=None,
    activation_input=None,
    activation_quant_scale=None,
    activation_quant_offset=None,
    split_item=0,
    group_type=None,
    group_list_type=0,
    act_type=0,
    output_dtype=None,
    tuning_config=None,
):
    """y_i = x_i @ weight_i for every group i; x, weight and the result are lists of tensors.

    The groups depend on group_type and on the number of tensors:

    - 0: rows of x, with sizes from group_list. weight is one tensor [E, K, N] or E tensors [K, N].
    - 2: columns of x [M, T] and rows of weight [T, N]; the result [E, M, N] is the gradient of a weight.
    - -1, or no group_list: x_i with weight_i, for lists of equal length.

    split_item 2 or 3 returns one result with the groups concatenated; 0 or 1 returns one result per weight. A
    group_list that is a list has cumulative sums and selects groups of rows.

    Bias, activations and quantized products are not supported and raise ValueError.

    Source: torch_npu.npu_grouped_matmul; aclnnGroupedMatmulV4.
    """
    quantised = {
        "scale": scale,
        "offset": offset,
        "antiquant_scale": antiquant_scale,
        "antiquant_offset": antiquant_offset,
        "per_token_scale": per_token_scale,
        "activation_input": activation_input,
        "activation_quant_scale": activation_quant_scale,
        "activation_quant_offset": activation_quant_offset,
        "tuning_config": tuning_config,
    }
    _check_list("x", x)
    _check_list("weight", weight)
    _refuse_what_is_missing(x, bias, quantised, act_type, output_dtype)
    _check_group_list(group_list, group_list_type)
    devices = {f"{name}[{i}]": t for name, ts in (("x", x), ("weight", weight)) for i, t in enumerate(ts)}
    listed = group_list is None or isinstance(group_list, (list, tuple))
    check_one_device(_GMM, **devices, group_list=None if listed else group_list)
    if split_item not in (0, 1, 2, 3):
        _refuse("split_item", f"split_item is {split_item}")
    if group_type not in (None, ROWS, DEPTH, UNGROUPED):
        _refuse("group_type", f"group_type is {group_type}")
    single_result = split_item in ONE_RESULT
    if group_type == DEPTH:
        return _groups_of_depth(x, weight, group_list, group_list_type, single_result)
    if group_list is None:
        return _pairs(x, weight, single_result)
    return _groups_of_rows(x, weight, group_list, group_type, group_list_type or 0, single_result)


def _refuse(rule: str, received: str):
    contracts.refuse(f"grouped_matmul.{rule}", _GMM, received)


def _check_list(name: str, tensors) -> None:
    if not isinstance(tensors, (list, tuple)):
        _refuse("list", f"{name} is {type(tensors).__name__}")
    if not 1 <= len(tensors) <= contracts.limit("grouped_matmul.list"):
        _refuse("list", f"{name} has {len(tensors)} tensors")
    rule = "grouped_matmul.dtype"
    for i, tensor in enumerate(tensors):
        check_contract_dtype(rule, _GMM, f"{name}[{i}]", tensor, contracts.dtypes(rule))
    _check_ranks(name, tensors, 2, _MOST_DIMENSIONS[name])


def _check_ranks(name: str, tensors, lowest: int, highest: int) -> None:
    for i, tensor in enumerate(tensors):
        if not lowest <= len(tensor.shape) <= highest:
            _refuse("ranks", f"{name}[{i}] has shape {list(tensor.shape)}")


def _check_group_list(group_list, group_list_type) -> None:
    if group_list_type not in (None, CUMULATIVE, COUNTS):
        _refuse("group_list_type", f"group_list_type is {group_list_type!r}")
    if group_list is None or isinstance(group_list, (list, tuple)):
        return
    integers = contracts.dtypes("grouped_matmul.group_list_dtype")
    check_contract_dtype("grouped_matmul.group_list", _GMM, "group_list", group_list, integers)
    if len(group_list.shape) != 1:
        _refuse("group_list", f"group_list has shape {list(group_list.shape)}")


def _refuse_what_is_missing(x, bias, quantised, act_type, output_dtype) -> None:
    quantised_arguments = [name for name, value in quantised.items() if value is not None]
    if quantised_arguments:
        _refuse("quantised", f"{', '.join(quantised_arguments)} came")
    if bias is not None and not (isinstance(bias, (list, tuple)) and not bias):
        _refuse("bias", f"bias is {type(bias).__name__}")
    if act_type not in (None, 0):
        _refuse("act_type", f"act_type is {act_type}")
    if output_dtype is not None and name_of(output_dtype) != dtype_name(x[0]):
        _refuse("output_dtype", f"output_dtype is {output_dtype} and x is {dtype_name(x[0])}")


def _pairs(x, weight, single_result: bool):
    if len(x) != len(weight):
        _refuse("list", f"x has {len(x)} tensors and weight {len(weight)}, without group_list")
    _check_ranks("weight", weight, 2, 2)
    return _joined([_product(*pair) for pair in zip(x, weight, strict=True)], single_result)


def _groups_of_rows(x, weight, group_list, group_type, group_list_type, single_result: bool):
    listed = isinstance(group_list, (list, tuple))
    if group_type == UNGROUPED or (group_type is None and not listed):
        _refuse("group_type", f"group_type is {group_type} with a group_list")
    if (listed or group_list_type == COUNTS) and len(group_list) == 1:
        _refuse("group_length", "group_list has one element")
    if not listed and max(len(x), len(weight)) > 1 and dtype_name(x[0]) == "float32":
        _refuse("float32_lists", f"x has {len(x)} float32 tensors and weight {len(weight)}")
    _check_ranks("x", x, 2, 2)
    if len(weight) > 1:
        _check_ranks("weight", weight, 2, 2)
    if len(x) > 1:
        sizes = group_sizes(group_list, group_list_type, sum(tensor.shape[0] for tensor in x))
        if sizes != [tensor.shape[0] for tensor in x]:
            _refuse("group_total", f"the groups contain {sizes} rows")
        return _pairs(x, weight, single_result)
    if single_result:
        return [grouped_matmul(x[0], weight if len(weight) > 1 else weight[0], group_list, group_list_type)]
    if len(weight) == 1 or not listed:
        _refuse("split_item", "split_item is 0 or 1 with one weight, or with a tensor group_list")
    sizes = group_sizes(group_list, group_list_type, x[0].shape[0])
    return _pairs(paddle.split(x[0], sizes), weight, single_result)


def _groups_of_depth(x, weight, group_list, group_list_type, single_result: bool):
    if len(x) > 1 or isinstance(group_list, (list, tuple)):
        _refuse("group_type", f"group_type is 2 with {len(x)} tensors of x and a {type(group_list).__name__}")
    _check_ranks("x", x, 2, 2)
    _check_ranks("weight", weight, 2, 2)
    if group_list is not None:
        if not single_result or len(weight) > 1:
            received = f"group_type is 2 with split_item 0 or 1, or with {len(weight)} tensors in weight"
            _refuse("split_item", received)
        return [grouped_matmul_dweight(x[0].t(), weight[0], group_list, group_list_type)]
    if single_result:
        _refuse("split_item", "split_item is 2 or 3 with group_type 2 and no group_list")
    sizes = [tensor.shape[0] for tensor in weight]
    left = x[0].shape[1] - sum(sizes)
    if left < 0:
        _refuse("group_total", f"the weights have {sum(sizes)} rows for {x[0].shape[1]} columns of x")
    return _pairs(paddle.split(x[0], [*sizes, left], axis=1)[:-1], weight, single_result)


def _product(x, weight):
    """x [..., K] @ weight [K, N]."""
    leading = list(x.shape[:-1])
    rows = x.reshape([math.prod(leading), x.shape[-1]])
    return grouped_matmul(rows, weight.unsqueeze(0), [rows.shape[0]]).reshape([*leading, weight.shape[-1]])


def _joined(results, single_result: bool):
    if not single_result:
        return results
    if len({result.shape[-1] for result in results}) > 1:
        _refuse("shape", f"the products have shapes {[list(result.shape) for result in results]}")
    return [paddle.concat(results)]
