"""Attention composed of plain Paddle operators: the definition, in any dtype, with gradients for all inputs.

Masks come from their reference (``Mask.to_dense``), not from the compiler. Memory grows with Sq * Skv.
Legend: B batch, Sq and Skv queries and keys of one sequence, T tokens, N heads, D head size.
"""

from __future__ import annotations

import paddle
import paddle.nn.functional as F

from paddle_fused.masks.tensors import hidden_tensor
from paddle_fused.masks.types import Dense, Intersection

from ..arguments import dtype_name, no_16_bit_on_cpu
from .call import AttentionCall
from .layout import as_bsnd, from_bsnd

STATISTICS = 8  # CANN stores this many copies of each row's maximum and sum


def run(query, key, value, bias, call: AttentionCall):
    if call.layout == "TND":
        return _sequences(query, key, value, call)
    heads = call.heads
    q, k, v = (
        as_bsnd(x, call.layout, n).transpose([0, 2, 1, 3])
        for x, n in ((query, heads.query), (key, heads.key), (value, heads.key))
    )
    hidden = _hidden(call.mask, call.shapes.query_len, call.shapes.key_len)
    out, *statistics = _attention(q, k, v, bias, hidden, call)
    return from_bsnd(out.transpose([0, 2, 1, 3]), call.layout), *statistics, None


def unsupported_reason(query, key, value, bias, call: AttentionCall) -> str | None:
    if call.layout == "TND" and call.cu_seqlens_q is not None and call.shapes.query_lens is None:
        return (
            "composed attention slices the tokens by cu_seqlens, whose values this captured program does not "
            "have"
        )
    if call.seed is not None:
        return "Paddle's dropout does not accept a seed"
    if not call.shapes.known and any(
        not isinstance(part, Dense) for part in (call.mask or Intersection(())).parts
    ):
        return (
            f"composed attention materializes {call.mask!r}, but this captured program does not have the "
            "lengths"
        )
    return no_16_bit_on_cpu(query)


def _sequences(query, key, value, call):
    shapes = call.shapes
    query_lens, key_lens = (
        ((shapes.query_len,), (shapes.key_len,))
        if shapes.query_lens is None
        else (shapes.query_lens, shapes.key_lens)
    )
    parts, query_end, key_end = [], 0, 0
    for s, (query_len, key_len) in enumerate(zip(query_lens, key_lens, strict=True)):
        query_start, query_end = query_end, query_end + query_len
        key_start, key_end = key_end, key_end + key_len
        if query_len == 0:
            continue
        q = query[query_start:query_end].transpose([1, 0, 2]).unsqueeze(0)
        k, v = (x[key_start:key_end].transpose([1, 0, 2]).unsqueeze(0) for x in (key, value))
        mask = None if call.mask is None else call.mask.of_sequence(s, query_lens)
        out, *statistics = _attention(q, k, v, None, _hidden(mask, query_len, key_len), call)
        parts.append([x if x is None else x.squeeze(0).transpose([1, 0, 2]) for x in (out, *statistics)])
    if not parts:  # no queries
        out = query[..., : call.heads.value_dim] + 0 * (key.sum() + value.sum())  # empty, with gradients
        statistics = (
            [paddle.zeros([0, call.heads.query, STATISTICS])] * 2 if call.returns_statistics else [None] * 2
        )
        return out, *statistics, None
    out, *statistics = (
        None if column[0] is None else paddle.concat(column) for column in zip(*parts, strict=True)
    )
    return out, *statistics, None


def _hidden(mask, query_len, key_len):
    """The mask as bool [Sq, Skv] or [B, N, Sq, Skv], or None. In TND a tensor is sliced to the sequence."""
    if mask is None:
        return None
    return hidden_tensor(mask, (query_len, key_len))


def _attention(q, k, v, bias, hidden, call):
    """Attention of [B, N, S, D] each: the output, and the statistics [B, N, Sq, 8] if requested."""
    groups = call.heads.query // call.heads.key
    if groups > 1:
        k, v = (_repeat_heads(x, groups) for x in (k, v))
    scores = paddle.matmul(q, k, transpose_y=True)
    scores = (scores if bias is None else scores + bias) * call.scale
    if hidden is not None:
        fully_masked = hidden.all(-1, keepdim=True)  # kept finite here, zeroed below
        lowest = paddle.full([], float("-inf"), scores.dtype)
        scores = paddle.where(paddle.logical_and(hidden, paddle.logical_not(fully_masked)), lowest, scores)
    probability = F.softmax(scores, axis=-1)
    if hidden is not None:  # Paddle's CPU softmax returns exp(-64) instead of 0
        probability = paddle.where(hidden, paddle.zeros([], scores.dtype), probability)
    out = paddle.matmul(_dropout(probability, call.dropout), v)
    if not call.returns_statistics:
        return out, None, None
    wide = (scores if dtype_name(scores) == "float64" else scores.astype("float32")).detach()
    row_max = wide.max(-1, keepdim=True)
    row_sum = (wide - row_max).exp().sum(-1, keepdim=True)
    repeated = [*row_max.shape[:3], STATISTICS]
    return out, row_max.astype("float32").expand(repeated), row_sum.astype("float32").expand(repeated)


def _repeat_heads(x, groups: int):
    b, n, s, d = x.shape
    return x.unsqueeze(2).expand([-1, -1, groups, -1, -1]).reshape([b, n * groups, s, d])


def _dropout(probability, rate: float):
    if rate == 0:
        return probability
    if dtype_name(probability) == "bfloat16":  # the card has no dropout kernel in bfloat16
        return F.dropout(probability.astype("float32"), rate).astype("bfloat16")
    return F.dropout(probability, rate)
