"""Attention with mask types: the public function. Each backend has a separate file.

Legend: B batch, Sq and Skv queries and keys of one sequence, T tokens of all sequences, N and Nkv heads of
query and of key and value, D and Dv head sizes.
"""

from __future__ import annotations

import math

from paddle_fused import masks
from paddle_fused.devices import default_device_of
from paddle_fused.dispatch import Backend, FusedOp

from ..arguments import check_number
from . import ascend, composed, native
from .call import AttentionCall, check_lengths, check_tensors
from .layout import heads_of
from .packing import zeroing
from .sharding import SHARDING, check_lengths_are_local

OPERATOR = "flash_attention"


def flash_attention(
    query,
    key,
    value,
    mask: masks.Mask | None = None,
    *,
    bias=None,
    dropout: float = 0.0,
    scale: float | None = None,
    training: bool = True,
    layout: str = "BSND",
    num_heads: int | None = None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    return_softmax_stats: bool = False,
):
    """out = dropout(softmax(scale * (Q K^T + bias) over the unmasked keys)) V.

    Args:
        query, key, value: float32, bfloat16 or float16, all the same (float64: composed only), in ``layout``:
            BSND [B, S, N, D], BNSD [B, N, S, D], BSH [B, S, N * D], SBH [S, B, N * D], TND [T, N, D]. N is a
            multiple of Nkv (grouped-query attention); D from 1 to 512; Dv <= D.
        mask: from `paddle_fused.masks`, such as ``masks.causal()``; None: full attention.
        bias: added to Q K^T before the scale, as CANN's ``pse``: query's dtype, [B, N, Sq, Skv], [B, N, 1,
            Skv] or [1, N, Sq, Skv]. Not in layout TND. It has a gradient.
        dropout: the dropout probability, below 1; ignored unless ``training``. Random numbers come from the
            generator of query's device (``paddle.seed``).
        scale: default 1 / sqrt(D).
        num_heads: N, required for BSH and SBH.
        cu_seqlens_q, cu_seqlens_k: for TND, as in flash-attention: cumulative lengths from 0 to T, lists of
            ints or tensors. The mask applies to each sequence. Alternatively, omit both and pass
            ``masks.documents`` as the mask.
        return_softmax_stats: also return the softmax's row maximum and sum (not differentiable).

    Returns:
        out, query's layout and dtype with head size Dv; gradients flow to query, key, value and bias. With
        ``return_softmax_stats`` (out, softmax_max, softmax_sum): float32 [B, N, Sq, 8], in layout TND [T, N,
        8], each value repeated eight times.

    Raises:
        ContractError (a ValueError): for calls that CANN rejects or computes incorrectly, with CANN's error
            number.
        ValueError: for other invalid arguments, and if no backend accepts the tensors.

    Source: aclnnFlashAttentionScore, aclnnFlashAttentionVarLenScore.
    """
    if mask is not None and not isinstance(mask, masks.Mask):
        raise ValueError(
            f"{OPERATOR}: mask is {type(mask).__name__}; accepted: a mask of paddle_fused.masks. Convert a "
            "bool tensor with masks.dense(tensor), where True means masked."
        )
    out, softmax_max, softmax_sum, _ = attend(
        query,
        key,
        value,
        mask,
        bias=bias,
        dropout=dropout if training else 0.0,
        scale=scale,
        layout=layout,
        num_heads=num_heads,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        returns_statistics=return_softmax_stats,
    )
    return (out, softmax_max, softmax_sum) if return_softmax_stats else out


def attend(
    query,
    key,
    value,
    mask,
    *,
    bias,
    dropout: float,
    scale: float | None,
    layout: str,
    num_heads: int | None,
    cu_seqlens_q,
    cu_seqlens_k,
    returns_statistics: bool,
    seed=None,
    operator: str = OPERATOR,
    heads_name: str = "num_heads",
):
    """flash_attention with all results: out, softmax_max, softmax_sum, and seed and offset.

    The statistics are None unless requested. Seed and offset of dropout are int64 [2], or None if the backend
    does not have them; ``seed`` (int64 [2]) sets them. ``operator`` and ``heads_name`` (for num_heads) are
    the names used in error messages.
    """
    dropout = check_number(operator, "dropout", dropout)
    scale = None if scale is None else check_number(operator, "scale", scale)
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"{operator}: scale is {scale}; accepted: a finite number, or None for 1 / sqrt(D).")
    check_tensors(query, key, value, bias, layout, dropout, operator)
    check_lengths_are_local(operator, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    shapes = masks.shapes_of(layout, query.shape, key.shape, cu_seqlens_q, cu_seqlens_k)
    heads = heads_of(layout, query.shape, key.shape, value.shape, num_heads, operator, heads_name)
    check_lengths(mask, layout, cu_seqlens_q, operator)
    if shapes.known and mask is not None and layout != "TND":
        mask = masks.within_bands(mask, shapes.query_len, shapes.key_len)
    plan = masks.compile_mask(mask, shapes, may_pack=bias is None)
    call = AttentionCall(
        layout=layout,
        heads=heads,
        mask=mask,
        shapes=shapes,
        plan=plan,
        scale=heads.head_dim**-0.5 if scale is None else scale,
        dropout=dropout,
        seed=seed,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        returns_statistics=returns_statistics,
        operator=operator,
    )
    with default_device_of(query):  # for masks, lengths and random numbers
        if not SHARDING.applies((query, key, value, bias, call)):  # otherwise the local shards are checked
            call.check(bias)
        out, softmax_max, softmax_sum, seed_offset = FLASH_ATTENTION(query, key, value, bias, call)
    statistics = [softmax_max.detach(), softmax_sum.detach()] if returns_statistics else [None, None]
    return out, *statistics, seed_offset


FLASH_ATTENTION = FusedOp(
    OPERATOR,
    ascend=Backend(zeroing(ascend.run), ascend.unsupported_reason, ascend.mode, ascend.computed),
    native=Backend(zeroing(native.run), native.unsupported_reason, native.mode, native.computed),
    composed=Backend(composed.run, composed.unsupported_reason),
    sharding=SHARDING,
    without_gradient=(1, 2, 3),
)
