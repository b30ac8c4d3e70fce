"""Mixtures of experts: the public functions, and torch_npu's names."""

import paddle

from paddle_fused import grouped_matmul, moe_token_permute, moe_token_unpermute
from paddle_fused.compat import npu_grouped_matmul, npu_moe_token_permute, npu_moe_token_unpermute


def permute(tokens=(3, 4), indices=(3, 2), dtype="float32", indices_dtype="int64"):
    return moe_token_permute(paddle.zeros(tokens, dtype), paddle.zeros(indices, indices_dtype))


def unpermute(permuted=(6, 4), places=6, probs=None, dtype="float32"):
    order = paddle.arange(places, dtype="int32")
    return moe_token_unpermute(
        paddle.zeros(permuted, dtype), order, None if probs is None else paddle.zeros(probs)
    )


def matmul(x=(3, 4), weight=(2, 4, 5), groups=(1, 2), kind=1, dtypes=("float32", "float32")):
    x, weight = (paddle.zeros(shape, dtype) for shape, dtype in zip((x, weight), dtypes, strict=True))
    return grouped_matmul(x, weight, groups, kind)


def separate(weights=((4, 5), (4, 5)), groups=(1, 2)):
    return grouped_matmul(paddle.zeros([3, 4]), [paddle.zeros(shape) for shape in weights], list(groups), 1)


def lists(x=((3, 4),), weight=((2, 4, 5),), groups=(1, 3), dtype="float32", **keywords):
    if isinstance(groups, tuple):
        groups = paddle.to_tensor(groups)
        keywords = {"split_item": 3, "group_type": 0, **keywords}
    tensors = ([paddle.zeros(shape, dtype) for shape in shapes] for shapes in (x, weight))
    return npu_grouped_matmul(*tensors, group_list=groups, **keywords)


def double(*shape):
    """In a dtype that the public functions support, but not CANN."""
    return paddle.zeros(shape, "float64")


def too_many():
    column = paddle.zeros([1, 1]).expand([16777215, 1])
    return moe_token_permute(column, column.astype("int32"))


PLACES = paddle.to_tensor([0, 1, 2], dtype="int32")
CALLS = [
    ("moe.dtype", lambda: permute(dtype="int32")),
    ("moe.dtype", lambda: unpermute(dtype="int64")),
    ("moe.dtype", lambda: npu_moe_token_permute(double(3, 4), PLACES)),
    ("moe.dtype", lambda: npu_moe_token_unpermute(double(3, 4), PLACES)),
    ("moe.tokens", lambda: permute(tokens=(3, 4, 5))),
    ("moe.indices_dtype", lambda: permute(indices_dtype="float32")),
    ("moe.indices_shape", lambda: permute(indices=(4, 2))),
    ("moe.indices_shape", lambda: permute(indices=(3, 2, 1))),
    ("moe.top_k", lambda: permute(indices=(3, 513))),
    ("moe.top_k", lambda: permute(indices=(3, 0))),
    ("moe.indices", too_many),
    ("moe.indices", lambda: moe_token_permute(paddle.zeros([2, 4]), paddle.to_tensor([0, -1]))),
    ("moe.indices", lambda: moe_token_permute(paddle.zeros([2, 4]), paddle.to_tensor([16777215, 0]))),
    ("moe.padded_mode", lambda: npu_moe_token_permute(None, None, None, True)),
    ("moe.padded_mode", lambda: npu_moe_token_unpermute(None, None, None, True, [3, 4])),
    ("moe.permuted", lambda: unpermute(permuted=(7, 4))),
    ("moe.permuted", lambda: unpermute(permuted=(6, 2, 2))),
    ("moe.sorted_indices", lambda: moe_token_unpermute(paddle.zeros([3, 4]), PLACES.astype("int64"))),
    ("moe.sorted_indices", lambda: moe_token_unpermute(paddle.zeros([3, 4]), PLACES.unsqueeze(0))),
    ("moe.sorted_indices", lambda: moe_token_unpermute(paddle.zeros([3, 4]), PLACES + 1)),
    ("moe.sorted_indices", lambda: moe_token_unpermute(paddle.zeros([3, 4]), PLACES - 1)),
    ("moe.probs", lambda: unpermute(probs=(3, 3))),
    ("moe.probs", lambda: unpermute(probs=(6,))),
    ("moe.probs", lambda: unpermute(permuted=(513, 4), places=513, probs=(1, 513))),
    ("grouped_matmul.dtype", lambda: matmul(dtypes=("int32", "int32"))),
    ("grouped_matmul.dtype", lambda: matmul(dtypes=("float32", "bfloat16"))),
    ("grouped_matmul.dtype", lambda: lists(dtype="float64")),
    ("grouped_matmul.shape", lambda: matmul(weight=(2, 5, 5))),
    ("grouped_matmul.shape", lambda: matmul(weight=(4, 5))),
    ("grouped_matmul.shape", lambda: matmul(weight=(0, 4, 5), groups=())),
    ("grouped_matmul.shape", lambda: lists(weight=((4, 5), (4, 6)), groups=[1, 3], split_item=3)),
    ("grouped_matmul.shape", lambda: lists(((3, 4), (1, 4)), ((4, 5), (4, 6)), None, split_item=2)),
    ("grouped_matmul.shape", lambda: separate(weights=((4, 5), (4, 6)))),
    ("grouped_matmul.shape", lambda: separate(weights=((5, 5), (5, 5)))),
    ("grouped_matmul.shape", lambda: separate(weights=((2, 4, 5),), groups=(3,))),
    ("grouped_matmul.group_list", lambda: separate(groups=(3,))),
    ("grouped_matmul.list", lambda: separate(weights=(), groups=())),
    ("grouped_matmul.list", lambda: separate(weights=((4, 5),) * 129, groups=(3, *[0] * 128))),
    ("grouped_matmul.last_dim", lambda: matmul((3, 65536), (2, 65536, 1))),
    ("grouped_matmul.last_dim", lambda: matmul((3, 1), (2, 1, 65536))),
    ("grouped_matmul.groups", lambda: matmul((0, 1), (1025, 1, 1), (0,) * 1025)),
    ("grouped_matmul.float32_lists", lambda: lists(weight=((4, 5), (4, 5)))),
    ("grouped_matmul.group_list", lambda: matmul(groups=(1, 1, 1))),
    ("grouped_matmul.group_list", lambda: matmul(groups=("1", "2"))),
    ("grouped_matmul.group_list", lambda: matmul(groups=PLACES)),
    ("grouped_matmul.group_list", lambda: matmul(groups=paddle.zeros([2, 1], "int64"))),
    ("grouped_matmul.group_list_type", lambda: matmul(kind=2)),
    ("grouped_matmul.group_order", lambda: matmul(groups=(4, -1))),
    ("grouped_matmul.group_order", lambda: matmul(groups=(4, 3), kind=0)),
    ("grouped_matmul.group_total", lambda: matmul(groups=(1, 1))),
    ("grouped_matmul.group_total", lambda: matmul(groups=(1, 4), kind=0)),
    ("grouped_matmul.group_total", lambda: lists(((2, 4), (1, 4)), ((4, 5), (4, 5)), groups=[1, 3])),
    ("grouped_matmul.group_total", lambda: lists(((4, 2),), ((2, 5), (1, 5)), None, group_type=2)),
    ("grouped_matmul.list", lambda: lists((), ((4, 5),), None)),
    ("grouped_matmul.list", lambda: lists(((1, 1),) * 129, ((1, 1),) * 129, None)),
    ("grouped_matmul.list", lambda: lists(((1, 1),), ((1, 1),) * 2, None)),
    ("grouped_matmul.list", lambda: npu_grouped_matmul(paddle.zeros([2, 3, 4]), [paddle.zeros([4, 5])])),
    ("grouped_matmul.list", lambda: npu_grouped_matmul([paddle.zeros([3, 4])], paddle.zeros([2, 4, 5]))),
    ("grouped_matmul.list", lambda: npu_grouped_matmul(None, None)),
    ("grouped_matmul.ranks", lambda: lists(((),), ((4, 5),), None)),
    ("grouped_matmul.ranks", lambda: lists(((4,),), ((4, 5),), None)),
    ("grouped_matmul.ranks", lambda: lists(((3, 4),), ((4,),), None)),
    ("grouped_matmul.ranks", lambda: lists(((3, 4),), ((1, 4, 5),), None)),
    ("grouped_matmul.ranks", lambda: lists(((1, 3, 4),))),
    ("grouped_matmul.ranks", lambda: lists(weight=((2, 4, 5),) * 2, groups=[1, 3])),
    ("grouped_matmul.ranks", lambda: lists(((1, 4, 3),), ((3, 5),), group_type=2)),
    ("grouped_matmul.ranks", lambda: lists(((4, 3),), ((1, 3, 5),), group_type=2)),
    ("grouped_matmul.group_list", lambda: lists(groups=paddle.to_tensor(3))),
    ("grouped_matmul.group_list", lambda: lists(groups=paddle.to_tensor([1.0, 3.0]))),
    ("grouped_matmul.group_list_type", lambda: lists(group_list_type=2)),
    ("grouped_matmul.split_item", lambda: lists(split_item=4)),
    ("grouped_matmul.split_item", lambda: lists(split_item=0)),
    ("grouped_matmul.split_item", lambda: lists(weight=((4, 5), (4, 5)), split_item=1, dtype="float16")),
    ("grouped_matmul.split_item", lambda: lists(((4, 3),), ((3, 5),), split_item=0, group_type=2)),
    ("grouped_matmul.split_item", lambda: lists(((4, 3),), ((3, 5),), None, split_item=3, group_type=2)),
    ("grouped_matmul.group_type", lambda: lists(group_type=1)),
    ("grouped_matmul.group_type", lambda: lists(group_type=-1)),
    ("grouped_matmul.group_type", lambda: lists(group_type=None)),
    ("grouped_matmul.group_type", lambda: lists(groups=[1, 3], split_item=3, group_type=2)),
    ("grouped_matmul.group_length", lambda: lists(weight=((1, 4, 5),), groups=[3], split_item=3)),
    ("grouped_matmul.group_length", lambda: lists(weight=((1, 4, 5),), groups=(3,), group_list_type=1)),
    ("grouped_matmul.act_type", lambda: lists(act_type=1)),
    ("grouped_matmul.output_dtype", lambda: lists(output_dtype=paddle.float16)),
    ("grouped_matmul.bias", lambda: lists(bias=[paddle.zeros([5])])),
    ("grouped_matmul.bias", lambda: lists(bias=paddle.zeros([5]))),
    ("grouped_matmul.quantised", lambda: lists(scale=[paddle.zeros([5])])),
    ("grouped_matmul.quantised", lambda: lists(tuning_config=[8])),
]
