"""The mask of a decoder as an object with a meaning, instead of a tensor [B, 1, Sq, Skv].

PaddleNLP's decoders build every mask as a tensor and pass a hint beside it that it is causal, which recompute
and pipelines lose. Here the object itself goes to the layers as their ``attention_mask``, and through
recompute.

B batch, Sq queries, Skv keys: those of the key/value cache and the new ones.
"""

from __future__ import annotations

import paddle

from llm_npu.core.errors import UserError
from paddle_fused import masks


def mask_of(attention_mask, start_rows, query_len: int, key_len: int, causal: bool = True) -> masks.Mask:
    """The meaning of PaddleNLP's arguments ``attention_mask`` and ``attn_mask_startend_row_indices``.

    Args:
        attention_mask: None or a 2-D mask of tokens [B, Skv] (non-zero: a token, not padding), both causal;
            [B, Sq, Skv] or [B, 1, Sq, Skv], non-zero where a query sees a key, taken as it is; or a
            `paddle_fused.masks.Mask`.
        start_rows: [B, 1, Skv] or [B, 1, Skv, columns]: the rows of queries that do not see the key, as in
            `paddle_fused.flashmask_attention`, on top of the causal mask with 1 column, and with 2 if
            ``causal``; or None.

    UserError for anything else.
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
            f"attention_mask has shape {list(attention_mask.shape)}; accepted for {query_len} tokens and "
            f"{key_len} with those of the cache: [B, {key_len}], [B, {query_len}, {key_len}], "
            f"[B, 1, {query_len}, {key_len}], or a mask of paddle_fused.masks."
        )
    if rank == 2:
        if _has_no_padding(attention_mask):
            return masks.causal()
        if query_len == key_len and (lengths := _right_padded(attention_mask)):
            return masks.documents(lengths)  # nobody reads what the queries of padding give
        hidden = (attention_mask.astype("int32") == 0).reshape([-1, 1, 1, key_len])
        hidden = hidden.expand([hidden.shape[0], 1, query_len, key_len])
        return masks.causal() & masks.dense(hidden, invalid_rows=True)  # padding on the left sees nothing
    if _is_added(attention_mask):
        raise UserError(
            "attention_mask holds numbers below 0, to add to the scores; upstream decoders take every number "
            "but 0 for a visible key. Give a bool tensor (True = visible), or "
            "paddle_fused.masks.dense(hidden)."
        )
    keep = attention_mask.unsqueeze(1) if rank == 3 else attention_mask
    if keep.shape[2] == 1 and query_len != 1:  # the same for all queries
        keep = keep.expand([-1, -1, query_len, -1])
    return masks.dense(paddle.logical_not(keep.astype("bool")), invalid_rows=True)


def _differs(found: int, wanted: int) -> bool:
    """Sizes that are unknown (-1) while a program is captured are checked when it runs."""
    return found != wanted and -1 not in (found, wanted)


def _is_added(mask) -> bool:
    """Known in dygraph only."""
    return isinstance(mask, paddle.Tensor) and mask.is_floating_point() and bool((mask < 0).any())


def _has_no_padding(attention_mask) -> bool:
    """Known in dygraph only; a captured program keeps the mask."""
    return isinstance(attention_mask, paddle.Tensor) and bool((attention_mask != 0).all())


def _right_padded(attention_mask) -> list[list[int]] | None:
    """Of each row the lengths of its tokens and of the padding after them; None if any has padding elsewhere.

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
            "attn_mask_startend_row_indices is not known while a program is captured; give "
            "attention_mask=paddle_fused.masks.documents(lengths), made outside of the captured function."
        )
    rows = rows.unsqueeze(-1) if rows.ndim == 3 else rows
    rows = rows if rows.dtype == paddle.int32 else rows.astype("int32")
    return masks.row_indices(rows, causal={1: True, 4: False}.get(rows.shape[-1], causal))


def additive(mask: masks.Mask, batch: int, query_len: int, key_len: int, dtype):
    """The mask as PaddleNLP builds it: [B, 1, Sq, Skv], 0 where a query sees a key, else very low."""
    hidden = paddle.to_tensor(mask.to_dense(query_len, key_len))
    hidden = hidden if hidden.ndim == 4 else hidden.reshape([1, 1, query_len, key_len])
    hidden = hidden.expand([batch, hidden.shape[1], query_len, key_len])
    lowest = paddle.full([1], paddle.finfo(dtype).min, dtype)
    return paddle.where(hidden, lowest, paddle.zeros_like(lowest))
