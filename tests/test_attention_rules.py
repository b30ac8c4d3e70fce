"""Every rule of attention is broken once: refused before anything runs, with CANN's error number and in
words."""

from itertools import accumulate

import numpy as np
import paddle
import pytest

from paddle_fused import contracts, flash_attention, masks
from paddle_fused.compat import npu_fusion_attention

FLASH, FUSION = "flash_attention", "npu_fusion_attention"
INT_MAX = 2147483647


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


# rule: [(operator, call)]
BROKEN = {
    "dtype": [(FUSION, lambda: npu_fusion_attention(*[zeros(1, 4, 2, 8, dtype="float64")] * 3, 2, "BSND"))],
    "same_dtype": [
        (FLASH, lambda: flash_attention(zeros(1, 4, 2, 8), *[zeros(1, 4, 2, 8, dtype="float64")] * 2)),
        (FLASH, lambda: flash(bias=zeros(1, 2, 4, 4, dtype="float64"))),
    ],
    "layout": [(FLASH, lambda: flash(layout="NBSD")), (FUSION, lambda: fusion(layout="bsnd"))],
    "rank": [(FLASH, lambda: flash((4, 2, 8))), (FUSION, lambda: fusion(query=(2, 4, 8)))],
    "same_batch": [(FLASH, lambda: flash((1, 4, 2, 8), (2, 4, 2, 8)))],
    "batch": [(FLASH, lambda: flash((2 * 2**20 + 1, 0, 1, 1)))],
    "batch_with_prefix": [
        (FLASH, lambda: flash((2049, 1, 1, 1), mask=masks.prefix(1))),
        (FUSION, lambda: fusion(6, masks.compressed(True), (2049, 1, 2, 1), prefix=[1] * 2049)),
    ],
    "heads": [(FLASH, lambda: flash((1, 2, 257, 1)))],
    "head_groups": [(FLASH, lambda: flash((1, 4, 3, 8), (1, 4, 2, 8)))],
    "sequence": [(FLASH, lambda: flash((0, 2**20 + 1, 1, 1)))],
    "tokens": [(FLASH, lambda: packed([2**20, 1]))],
    "head_dim": [(FLASH, lambda: flash((1, 2, 1, 513)))],
    "same_head_dim": [(FLASH, lambda: flash((1, 4, 2, 8), (1, 4, 2, 6)))],
    "value_head_dim": [(FLASH, lambda: flash((1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 2, 9)))],
    "key_value": [(FLASH, lambda: flash((1, 4, 2, 8), (1, 4, 2, 8), (1, 5, 2, 8)))],
    "no_keys": [
        (FLASH, lambda: flash((1, 4, 2, 8), (1, 0, 2, 8))),
        (FLASH, lambda: packed([2, 2], [4, 0])),
    ],
    "keep_prob": [(FLASH, lambda: flash(dropout=1.0)), (FUSION, lambda: fusion(keep_prob=0.0))],
    "inner_precise": [(FUSION, lambda: fusion(inner_precise=3))],
    "lengths": [
        (FLASH, lambda: flash_attention(*[zeros(4, 2, 8)] * 3, masks.causal(), layout="TND")),
        (FLASH, lambda: flash_attention(*[zeros(4, 2, 8)] * 3, layout="TND", cu_seqlens_q=[0, 4])),
        (FUSION, lambda: npu_fusion_attention(*[zeros(4, 2, 8)] * 3, 2, "TND")),
    ],
    "lengths_count": [
        (FLASH, lambda: packed([4], [2, 2])),
        (FUSION, lambda: fusion_packed(3, [4], [2, 2])),
    ],
    "lengths_order": [
        (FLASH, lambda: packed([4, -1, 2], tokens=5)),
        (FUSION, lambda: fusion_packed(3, [4, -1, 2])),
    ],
    "lengths_total": [(FLASH, lambda: packed([2, 1], tokens=4))],
    "sequences": [
        (FLASH, lambda: packed([0] * 2049)),
        (FUSION, lambda: fusion_packed(3, [1] * 2049)),
    ],
    "pse_shape": [
        (FLASH, lambda: flash(bias=zeros(2, 4, 4))),
        (FUSION, lambda: fusion(pse=zeros(1, 1, 4, 4))),
    ],
    "pse_rows": [(FUSION, lambda: fusion(pse=zeros(2, 2, 1024, 4)))],
    "pse_varlen": [(FUSION, lambda: fusion_packed(3, [4], pse=zeros(4, 4)))],
    "pse_mode": [
        (FUSION, lambda: fusion_packed(7, [4], pse=zeros(32))),
        (FUSION, lambda: fusion_packed(8, [4], pse=zeros(32))),
    ],
    "pse_empty_sequence": [(FUSION, lambda: fusion_packed(3, [4, 0], pse=zeros(32)))],
    "mask_dtype": [(FUSION, lambda: fusion(1, zeros(4, 4)))],
    "mask_shape": [
        (FLASH, lambda: flash(mask=masks.dense(hidden(4, 5)))),
        (FLASH, lambda: flash(mask=masks.dense(hidden(1, 3, 4, 4)))),
        (FUSION, lambda: fusion(1, hidden(2, 1, 1, 4))),
    ],
    "mask_shape_varlen": [
        (FLASH, lambda: packed([3, 1], mask=masks.dense(hidden(4, 4)))),
        (FUSION, lambda: fusion_packed(1, [3, 1], mask=hidden(4, 4))),
    ],
    "mask_shape_compressed": [
        (FUSION, lambda: fusion(2, hidden(4, 4))),
        (FUSION, lambda: fusion(3, flipped())),
    ],
    "mask_shape_prefix": [(FUSION, lambda: fusion(5, hidden(4, 4), prefix=[1, 1]))],
    "mask_shape_prefix_compressed": [(FUSION, lambda: fusion(6, masks.compressed(), prefix=[1, 1]))],
    "mask_missing": [(FUSION, lambda mode=mode: fusion(mode)) for mode in range(1, 7)],
    "dense_mode": [
        (FUSION, lambda: fusion(7, masks.compressed())),
        (FUSION, lambda: fusion(-1, hidden(4, 4))),
    ],
    "varlen_mode": [(FUSION, lambda: fusion_packed(5, [4])), (FUSION, lambda: fusion_packed(9, [4]))],
    "band_top_left": [
        (FUSION, lambda: fusion(0, hidden(4, 4), pre_tockens=-3, next_tockens=2)),
        (FUSION, lambda: fusion(0, hidden(4, 4), next_tockens=-4)),
        (FUSION, lambda: fusion_packed(0, [4], mask=hidden(4, 4), next_tockens=-1)),
    ],
    "band_bottom_right": [
        (FLASH, lambda: masks.band(-4, 2)),
        (
            FLASH,
            lambda: flash((1, 4, 2, 8), (1, 9, 2, 8), mask=masks.causal("top_left") & masks.band(2, None)),
        ),
        (FUSION, lambda: fusion(4, masks.compressed(), pre_tockens=-3, next_tockens=2)),
        (FUSION, lambda: fusion_packed(4, [4], pre_tockens=-1)),
    ],
    "hidden_rows": [
        (FLASH, lambda: flash(mask=masks.dense(all_hidden_in_row_1()))),
        (FLASH, lambda: packed([4, 2], mask=masks.dense(all_hidden_in_row_1()))),
        (FLASH, lambda: packed([5], [2], mask=masks.band(1, 1, "top_left"))),
        (FUSION, lambda: fusion(1, paddle.to_tensor(all_hidden_in_row_1()))),
        (FUSION, lambda: fusion_packed(4, [4], [3], pre_tockens=3, next_tockens=0)),
    ],
    "prefix": [
        (FUSION, lambda: fusion(6, masks.compressed(True))),
        (FUSION, lambda: fusion(6, masks.compressed(True), prefix=[1])),
    ],
    "prefix_range": [
        (FLASH, lambda: flash(mask=masks.prefix(5))),
        (FUSION, lambda: fusion(6, masks.compressed(True), key=(2, 6, 2, 8), prefix=[1, 2])),
    ],
    "prefix_varlen": [(FLASH, lambda: packed([4], mask=masks.prefix(1)))],
    "mode3_varlen": [
        (FLASH, lambda: packed([3, 2], [2, 2], mask=masks.causal())),
        (FUSION, lambda: fusion_packed(3, [3, 2], [2, 2])),
    ],
    "mode7_last": [
        (FUSION, lambda: fusion_packed(7, [4, 4], next_tockens=1)),
        (FUSION, lambda: fusion_packed(7, [4, 4, 0], pre_tockens=3, next_tockens=0)),
    ],
    "mode7_others": [(FUSION, lambda: fusion_packed(7, [4, 4], [3, 5], next_tockens=0))],
    "mode8_first": [(FUSION, lambda: fusion_packed(8, [0, 4, 4], [0, 6, 4], next_tockens=-3))],
}
CASES = [(rule, operator, call) for rule, calls in BROKEN.items() for operator, call in calls]


@pytest.mark.parametrize("rule, operator, call", CASES, ids=[f"{r} {i}" for i, (r, _, _) in enumerate(CASES)])
def test_broken_rule(rule, operator, call):
    paddle.set_device("cpu")
    with pytest.raises(contracts.ContractError) as raised:
        call()
    expected = contracts.RULES[f"attention.{rule}"]
    assert raised.value.rule is expected, raised.value
    message = str(raised.value)
    assert message.startswith(f"{operator}: ") and f"accepted: {expected.accepts}" in message
    assert expected.error is None or str(expected.error) in message


def test_every_rule_is_broken_once():
    ours = {
        key.removeprefix("attention.")
        for key, rule in contracts.RULES.items()
        if key.startswith("attention.") and {FLASH, FUSION} & set(rule.operators)
    }
    assert ours == set(BROKEN)


WRONG = {
    "mask is Tensor; accepted: a mask of paddle_fused.masks": lambda: flash(mask=hidden(4, 4)),
    "query is list": lambda: flash_attention([1], zeros(1), zeros(1)),
    "query is int64": lambda: flash_attention(*[zeros(1, 4, 2, 8, dtype="int64")] * 3),
    "layout BSH needs num_heads": lambda: flash((1, 4, 16), layout="BSH"),
    "not whole heads": lambda: flash((1, 4, 16), (1, 4, 15), layout="BSH", num_heads=2),
    "num_heads is 3, but query": lambda: flash(num_heads=3),
    "bias came in layout TND": lambda: packed([4], bias=zeros(1, 2, 4, 4)),
    "cu_seqlens_q and cu_seqlens_k belong to layout TND": lambda: flash(
        cu_seqlens_q=[0, 4], cu_seqlens_k=[0, 4]
    ),
    r"cu_seqlens_q is \[1, 4\]; accepted: cumulative lengths from 0 on": lambda: flash(
        (4, 2, 8), layout="TND", cu_seqlens_q=[1, 4], cu_seqlens_k=[0, 4]
    ),
    "actual_seq_qlen and actual_seq_kvlen belong to layout TND": lambda: fusion(actual_seq_qlen=[4]),
    "sink, seed came; no backend has it": lambda: fusion(sink=zeros(2), seed=3),
    "softmax_layout came": lambda: fusion(softmax_layout="NTD"),
    "a compressed pse of 1024 rows came": lambda: fusion(pse=zeros(1, 2, 1024, 1025), query=(1, 1025, 2, 1)),
    "pse came in layout TND": lambda: fusion_packed(3, [4], pse=zeros(32)),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    paddle.set_device("cpu")
    with pytest.raises(ValueError, match=f"(flash|npu_fusion)_attention: .*{message}"):
        WRONG[message]()
