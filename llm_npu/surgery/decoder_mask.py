"""The mask of a decoder as a mask object instead of a tensor [B, 1, Sq, Skv].

PaddleNLP's decoders build every mask as a tensor and pass a separate hint that it is causal; recompute and
pipelines lose the hint. Here the layers receive the mask object as their ``attention_mask``, also through
recompute.

B batch, Sq queries, Skv keys (cached and new).
"""

from __future__ import annotations

import paddle

from llm_npu.core.errors import UserError
from paddle_fused import masks


def mask_of(attention_mask, start_rows, query_len: int, key_len: int, causal: bool = True) -> masks.Mask:
    """The mask object for PaddleNLP's arguments ``attention_mask`` and ``attn_mask_startend_row_indices``.

    Args:
        attention_mask: None or a 2-D token mask [B, Skv] (non-zero for tokens, 0 for padding), combined with
            the causal mask; [B, Sq, Skv] or [B, 1, Sq, Skv], non-zero where a query attends to a key, used
            unchanged; or a `paddle_fused.masks.Mask`.
        start_rows: [B, 1, Skv] or [B, 1, Skv, columns]: the query rows for which the key is masked, as in
            `paddle_fused.flashmask_attention`, combined with the causal mask for 1 column, and for 2 columns
            if ``causal``; or None.

    Raises:
        UserError: for anything else.
    """
    if isinstance(attention_mask, masks.Mask):
        return attention_mask
    if start_rows is not None:
        return _from_rows(start_rows, causal)
    if attention_mask is None:
        return masks.causal()
    rank = len(attention_mask.shape)
    if rank not in (2, 3, 4) or _differs(attention_mask.shape[-1], key_len):
        raise UserError(
            f"attention_mask has shape {list(attention_mask.shape)}; accepted for {query_len} new tokens and "
            f"{key_len} keys, cached ones included: [B, {key_len}], [B, {query_len}, {key_len}], "
            f"[B, 1, {query_len}, {key_len}], or a mask of paddle_fused.masks"
        )
    if rank == 2:
        if _has_no_padding(attention_mask):
            return masks.causal()
        if query_len == key_len and (lengths := _right_padded(attention_mask)):
            return masks.documents(lengths)  # the outputs of padding are never read
        hidden = (attention_mask.astype("int32") == 0).reshape([-1, 1, 1, key_len])
        hidden = hidden.expand([hidden.shape[0], 1, query_len, key_len])
        return masks.causal() & masks.dense(hidden, invalid_rows=True)  # left padding: fully masked rows
    if _is_added(attention_mask):
        raise UserError(
            "attention_mask has negative values, like an additive mask, but upstream decoders treat every "
            "nonzero value as a visible key. Pass a bool tensor (True = visible), or "
            "paddle_fused.masks.dense(hidden)."
        )
    keep = attention_mask.unsqueeze(1) if rank == 3 else attention_mask
    if keep.shape[2] == 1 and query_len != 1:  # the same for all queries
        keep = keep.expand([-1, -1, query_len, -1])
    return masks.dense(paddle.logical_not(keep.astype("bool")), invalid_rows=True)


def _differs(size: int, expected: int) -> bool:
    """Sizes that are unknown (-1) while a program is captured are checked when it runs."""
    return size != expected and -1 not in (size, expected)


def _is_added(mask) -> bool:

    return isinstance(mask, paddle.Tensor) and mask.is_floating_point() and bool((mask < 0).any())


def _has_no_padding(attention_mask) -> bool:
    """Whether all tokens are valid; False in a captured program, where the values are unknown."""
    return isinstance(attention_mask, paddle.Tensor) and bool((attention_mask != 0).all())


def _right_padded(attention_mask) -> list[list[int]] | None:
    """The number of tokens and of padding after them in each row; None if any row is padded elsewhere.

    Known in dygraph only.
    """
    if not isinstance(attention_mask, paddle.Tensor):
        return None
    is_token = attention_mask.numpy() != 0
    if (is_token[:, 1:] > is_token[:, :-1]).any() or not is_token[:, 0].all():
        return None
    width = is_token.shape[1]
    return [[tokens, width - tokens] if tokens < width else [width] for tokens in is_token.sum(1).tolist()]


def _from_rows(rows, causal: bool) -> masks.Mask:
    if not isinstance(rows, paddle.Tensor):
        raise UserError(
            "attn_mask_startend_row_indices is unknown while a program is captured; pass "
            "attention_mask=paddle_fused.masks.documents(lengths), created outside the captured function"
        )
    rows = rows.unsqueeze(-1) if rows.ndim == 3 else rows
    rows = rows if rows.dtype == paddle.int32 else rows.astype("int32")
    return masks.row_indices(rows, causal={1: True, 4: False}.get(rows.shape[-1], causal))


def additive(mask: masks.Mask, batch: int, query_len: int, key_len: int, dtype):
    """The mask as PaddleNLP builds it: [B, 1, Sq, Skv], 0 for visible keys, else the dtype's minimum."""
    hidden = paddle.to_tensor(mask.to_dense(query_len, key_len))
    hidden = hidden if hidden.ndim == 4 else hidden.reshape([1, 1, query_len, key_len])
    hidden = hidden.expand([batch, hidden.shape[1], query_len, key_len])
    lowest = paddle.full([1], paddle.finfo(dtype).min, dtype)
    return paddle.where(hidden, lowest, paddle.zeros_like(lowest))
