"""torch_npu.npu_fusion_attention for Paddle.

Legend: B batch, S sequence, T tokens, N heads, D head size, H = N * D. Sq, Skv: S of query, of key and value.
"""

from __future__ import annotations

from itertools import accumulate

import paddle

from .. import masks
from ..masks.modes import SparseMode
from ..ops.arguments import check_int, check_number
from ..ops.attention.op import attend
from .attention_checks import OPERATOR, check, lengths_of

INT_MAX = 2147483647


def npu_fusion_attention(
    query,
    key,
    value,
    head_num: int,
    input_layout: str,
    pse=None,
    padding_mask=None,
    atten_mask=None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = INT_MAX,
    next_tockens: int = INT_MAX,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink=None,
    dropout_mask=None,
    seed: int = 0,
    offset: int = 0,
):
    """attention_out = dropout(softmax(scale * (Q K^T + pse), masked by atten_mask and sparse_mode)) V.

    Has the arguments of ``torch_npu.npu_fusion_attention``, in its order, with its defaults and its spelling
    (``pre_tockens``). Calls for which CANN silently computes a wrong result are rejected.

    Args:
        query, key, value: float32, bfloat16 or float16 in ``input_layout`` BSH, SBH, BSND, BNSD or TND;
            ``head_num`` is N of the query.
        pse: [B, N, Sq, Skv], [B, N, 1, Skv] or [1, N, Sq, Skv], of query's dtype.
        atten_mask: bool or uint8; True or 1 means masked. Modes 0, 1 and 5: the full mask, [Sq, Skv],
            [1, 1, Sq, Skv], [B, 1, Sq, Skv] or [B, N, Sq, Skv]; in layout TND [longest Sq, longest Skv].
            Modes 2, 3, 4, 7, 8 ([2048, 2048]) and 6 ([3072, 2048]): `masks.compressed`.
        keep_prob: above 0, at most 1. Random numbers come from the device's generator (``paddle.seed``).
        pre_tockens, next_tockens: the band of modes 0, 4, 7 and 8. Without a mask they have no effect.
        inner_precise: 2 returns zeros for fully masked rows; with other values such rows are rejected.
        prefix: lengths for modes 5 and 6, one per batch element.
        actual_seq_qlen, actual_seq_kvlen: for TND: cumulative lengths without a leading 0, lists of ints or
            tensors. Trailing zeros are padding.
        gen_mask_parallel, sync: no effect; they control how a card generates its dropout mask.
        padding_mask, softmax_layout, sink, dropout_mask, seed, offset: accepted only at their defaults
            (softmax_layout "TND" too: the statistics of TND are [T, N, 8] in this order).

    Returns:
        (attention_out, softmax_max, softmax_sum, reserved, seed, offset, numel): the statistics are float32
        [B, N, Sq, 8] or [T, N, 8]; reserved is empty; seed and offset belong to dropout (0 without
        dropout and on the composed backend); numel is the number of elements of a dropout mask.

    Raises:
        ContractError (a ValueError): with CANN's error number.

    Source: op-plugin torch_npu-npu_fusion_attention.md; aclnnFlashAttentionScore.
    """
    unused = {"padding_mask": padding_mask, "sink": sink, "dropout_mask": dropout_mask}
    unused = {name: x for name, x in unused.items() if x is not None}
    unused |= {name: x for name, x in {"seed": seed, "offset": offset}.items() if x != 0}
    if softmax_layout not in ("", "TND"):
        unused["softmax_layout"] = softmax_layout
    if unused:
        raise ValueError(f"{OPERATOR}: received {', '.join(unused)}, which no backend supports. Omit it.")
    head_num = check_int(OPERATOR, "head_num", head_num)
    keep_prob, scale = check_number(OPERATOR, "keep_prob", keep_prob), check_number(OPERATOR, "scale", scale)
    query_lens, key_lens = lengths_of(input_layout, actual_seq_qlen, actual_seq_kvlen)
    ends = [None if lens is None else [0, *accumulate(lens)] for lens in (query_lens, key_lens)]
    chosen = SparseMode(
        sparse_mode,
        pre_tockens,
        next_tockens,
        None if prefix is None or sparse_mode not in (5, 6) else tuple(prefix),
        zero_rows=inner_precise == 2,
    )
    shapes = check(
        query, key, value, head_num, input_layout, pse, atten_mask, keep_prob, inner_precise, chosen, ends
    )
    mask = None if atten_mask is None else chosen
    if mask is not None and sparse_mode in (0, 1, 5):
        hidden = atten_mask if atten_mask.dtype == paddle.bool else atten_mask.astype("bool")
        mask = chosen & masks.dense(hidden, inner_precise == 2)
    out, softmax_max, softmax_sum, seed_offset = attend(
        query,
        key,
        value,
        mask,
        bias=pse,
        dropout=1.0 - keep_prob,
        scale=scale,
        layout=input_layout,
        num_heads=head_num,
        cu_seqlens_q=ends[0],
        cu_seqlens_k=ends[1],
        returns_statistics=True,
        operator=OPERATOR,
        heads_name="head_num",
    )
    drawn = keep_prob < 1 and seed_offset is not None and paddle.in_dynamic_mode()
    seed, offset = seed_offset.tolist() if drawn else (0, 0)
    if input_layout == "TND":
        numel = head_num * sum(q * k for q, k in zip(query_lens, key_lens, strict=True))
    else:
        numel = shapes.batch * head_num * shapes.query_len * shapes.key_len if shapes.known else -1
    return out, softmax_max, softmax_sum, paddle.zeros([0], query.dtype), seed, offset, numel
