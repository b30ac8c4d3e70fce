"""flash_attention, and npu_fusion_attention with torch_npu's arguments."""

from itertools import accumulate

import numpy as np
import paddle

from paddle_fused import flash_attention, masks
from paddle_fused.compat import npu_fusion_attention


def zeros(*shape, dtype="float32"):
    return paddle.zeros(shape, dtype)


def flash(query=(1, 4, 2, 8), key=None, value=None, mask=None, **options):
    key = query if key is None else key
    return flash_attention(zeros(*query), zeros(*key), zeros(*(value or key)), mask, **options)


def packed(query_lens, key_lens=None, mask=None, tokens=None, **options):
    key_lens = query_lens if key_lens is None else key_lens
    ends = [[0, *accumulate(lens)] for lens in (query_lens, key_lens)]
    q, k = (zeros(tokens or sum(lens), 2, 8) for lens in (query_lens, key_lens))
    return flash_attention(q, k, k, mask, layout="TND", cu_seqlens_q=ends[0], cu_seqlens_k=ends[1], **options)


def fusion(mode=0, mask=None, query=(2, 4, 2, 8), key=None, layout="BSND", **options):
    q, k = zeros(*query), zeros(*(key or query))
    return npu_fusion_attention(q, k, k, 2, layout, atten_mask=mask, sparse_mode=mode, **options)


def fusion_packed(mode, query_lens, key_lens=None, mask="compressed", **options):
    key_lens = query_lens if key_lens is None else key_lens
    q, k = zeros(sum(query_lens), 2, 8), zeros(sum(key_lens), 2, 8)
    if isinstance(mask, str):
        mask = masks.compressed(prefix=mode == 6)
    ends = [list(accumulate(lens)) for lens in (query_lens, key_lens)]
    return npu_fusion_attention(
        *(q, k, k, 2, "TND"),
        atten_mask=mask,
        sparse_mode=mode,
        actual_seq_qlen=ends[0],
        actual_seq_kvlen=ends[1],
        **options,
    )


def hidden(*shape):
    return paddle.zeros(shape, "bool")


def all_hidden_in_row_1():
    mask = np.zeros((4, 4), bool)
    mask[1] = True
    return mask


def flipped():
    return paddle.logical_not(masks.compressed())


# rule: calls
INVALID_CALLS = {
    "dtype": [lambda: npu_fusion_attention(*[zeros(1, 4, 2, 8, dtype="float64")] * 3, 2, "BSND")],
    "same_dtype": [
        lambda: flash_attention(zeros(1, 4, 2, 8), *[zeros(1, 4, 2, 8, dtype="float64")] * 2),
        lambda: flash(bias=zeros(1, 2, 4, 4, dtype="float64")),
    ],
    "layout": [lambda: flash(layout="NBSD"), lambda: fusion(layout="bsnd")],
    "rank": [lambda: flash((4, 2, 8)), lambda: fusion(query=(2, 4, 8))],
    "same_batch": [lambda: flash((1, 4, 2, 8), (2, 4, 2, 8))],
    "batch": [lambda: flash((2 * 2**20 + 1, 0, 1, 1))],
    "batch_with_prefix": [
        lambda: flash((2049, 1, 1, 1), mask=masks.prefix(1)),
        lambda: fusion(6, masks.compressed(True), (2049, 1, 2, 1), prefix=[1] * 2049),
    ],
    "heads": [lambda: flash((1, 2, 257, 1))],
    "head_groups": [lambda: flash((1, 4, 3, 8), (1, 4, 2, 8))],
    "sequence": [lambda: flash((0, 2**20 + 1, 1, 1))],
    "tokens": [lambda: packed([2**20, 1])],
    "head_dim": [lambda: flash((1, 2, 1, 513))],
    "same_head_dim": [lambda: flash((1, 4, 2, 8), (1, 4, 2, 6))],
    "value_head_dim": [lambda: flash((1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 2, 9))],
    "key_value": [lambda: flash((1, 4, 2, 8), (1, 4, 2, 8), (1, 5, 2, 8))],
    "no_keys": [
        lambda: flash((1, 4, 2, 8), (1, 0, 2, 8)),
        lambda: packed([2, 2], [4, 0]),
        lambda: fusion_packed(0, [2, 2], [4, 0], mask=None),
    ],
    "keep_prob": [lambda: flash(dropout=1.0), lambda: fusion(keep_prob=0.0)],
    "inner_precise": [lambda: fusion(inner_precise=3)],
    "lengths": [
        lambda: npu_fusion_attention(*[zeros(4, 2, 8)] * 3, 2, "TND"),
        lambda: npu_fusion_attention(
            *[zeros(4, 2, 8)] * 3, 2, "TND", actual_seq_qlen=[], actual_seq_kvlen=[4]
        ),
    ],
    "lengths_from_0": [
        lambda: flash_attention(*[zeros(4, 2, 8)] * 3, masks.causal(), layout="TND"),
        lambda: flash_attention(*[zeros(4, 2, 8)] * 3, layout="TND", cu_seqlens_q=[0, 4]),
    ],
    "lengths_count": [lambda: packed([4], [2, 2]), lambda: fusion_packed(3, [4], [2, 2])],
    "lengths_order": [lambda: fusion_packed(3, [4, -1, 2])],
    "lengths_order_from_0": [lambda: packed([4, -1, 2], tokens=5)],
    "lengths_total": [
        lambda: packed([2, 1], tokens=4),
        lambda: npu_fusion_attention(
            *[zeros(4, 2, 8)] * 3, 2, "TND", actual_seq_qlen=[3], actual_seq_kvlen=[4]
        ),
    ],
    "sequences": [lambda: packed([0] * 2049), lambda: fusion_packed(3, [1] * 2049)],
    "pse_shape": [lambda: flash(bias=zeros(2, 4, 4)), lambda: fusion(pse=zeros(1, 1, 4, 4))],
    "pse_rows": [lambda: fusion(pse=zeros(2, 2, 1024, 4))],
    "pse_varlen": [lambda: fusion_packed(3, [4], pse=zeros(4, 4))],
    "pse_mode": [lambda: fusion_packed(7, [4], pse=zeros(32)), lambda: fusion_packed(8, [4], pse=zeros(32))],
    "pse_empty_sequence": [lambda: fusion_packed(3, [4, 0], pse=zeros(32))],
    "mask_dtype": [lambda: fusion(1, zeros(4, 4))],
    "mask_shape": [
        lambda: flash(mask=masks.dense(hidden(4, 5))),
        lambda: flash(mask=masks.dense(hidden(1, 3, 4, 4))),
        lambda: fusion(1, hidden(2, 1, 1, 4)),
    ],
    "mask_shape_varlen": [
        lambda: packed([3, 1], mask=masks.dense(hidden(4, 4))),
        lambda: fusion_packed(1, [3, 1], mask=hidden(4, 4)),
    ],
    "mask_shape_compressed": [lambda: fusion(2, hidden(4, 4)), lambda: fusion(3, flipped())],
    "mask_shape_prefix": [lambda: fusion(5, hidden(4, 4), prefix=[1, 1])],
    "mask_shape_prefix_compressed": [lambda: fusion(6, masks.compressed(), prefix=[1, 1])],
    "mask_missing": [(lambda mode=mode: fusion(mode)) for mode in range(1, 7)],
    "dense_mode": [lambda: fusion(7, masks.compressed()), lambda: fusion(-1, hidden(4, 4))],
    "varlen_mode": [lambda: fusion_packed(5, [4]), lambda: fusion_packed(9, [4])],
    "band_top_left": [
        lambda: fusion(0, hidden(4, 4), pre_tockens=-3, next_tockens=2),
        lambda: fusion(0, hidden(4, 4), next_tockens=-4),
        lambda: fusion_packed(0, [4], mask=hidden(4, 4), next_tockens=-1),
    ],
    "band_bottom_right": [
        lambda: masks.band(-4, 2),
        lambda: flash((1, 4, 2, 8), (1, 9, 2, 8), mask=masks.causal("top_left") & masks.band(2, None)),
        lambda: fusion(4, masks.compressed(), pre_tockens=-3, next_tockens=2),
        lambda: fusion_packed(4, [4], pre_tockens=-1),
    ],
    "hidden_rows_of_intents": [
        lambda: flash(mask=masks.dense(all_hidden_in_row_1())),
        lambda: packed([4, 2], mask=masks.dense(all_hidden_in_row_1())),
        lambda: packed([5], [2], mask=masks.band(1, 1, "top_left")),
    ],
    "hidden_rows": [
        lambda: fusion(1, paddle.to_tensor(all_hidden_in_row_1())),
        lambda: fusion_packed(4, [4], [3], pre_tockens=3, next_tockens=0),
    ],
    "prefix": [
        lambda: fusion(6, masks.compressed(True)),
        lambda: fusion(6, masks.compressed(True), prefix=[1]),
    ],
    "prefix_range": [
        lambda: flash(mask=masks.prefix(5)),
        lambda: fusion(6, masks.compressed(True), key=(2, 6, 2, 8), prefix=[1, 2]),
    ],
    "prefix_varlen": [lambda: packed([4], mask=masks.prefix(1))],
    "mode3_varlen": [
        lambda: packed([3, 2], [2, 2], mask=masks.causal()),
        lambda: fusion_packed(3, [3, 2], [2, 2]),
    ],
    "mode7_last": [
        lambda: fusion_packed(7, [4, 4], next_tockens=1),
        lambda: fusion_packed(7, [4, 4, 0], pre_tockens=3, next_tockens=0),
    ],
    "mode7_others": [lambda: fusion_packed(7, [4, 4], [3, 5], next_tockens=0)],
    "mode8_first": [lambda: fusion_packed(8, [0, 4, 4], [0, 6, 4], next_tockens=-3)],
}
CALLS = [(f"attention.{rule}", call) for rule, calls in INVALID_CALLS.items() for call in calls]
