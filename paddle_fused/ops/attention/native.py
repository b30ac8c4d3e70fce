"""Attention with the host kernel pf_flash_attention, which takes the bands of the plan.

Legend: B batch, S sequence, T tokens, N heads, D head size.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, chain

import paddle

from paddle_fused import native
from paddle_fused.masks.explain import computed_fraction

from ..arguments import dtype_name
from .call import AttentionCall, full_mask
from .layout import from_bsnd
from .packing import packed, unpacked, zero_queries

_SEEDS = 2**31 - 1  # the largest bound that randint accepts


def run(query, key, value, bias, call: AttentionCall):
    plan, heads, layout = call.plan, call.heads, call.layout
    mask = None if plan.full is None else full_mask(call)
    query_ends = key_ends = None
    operator_layout = "TND" if plan.packed else "BSND" if layout == "TND" else layout
    if plan.packed:
        query_ends, key_ends = _ends(call)
        if layout != "TND":
            query, key, value = (
                packed(x, n, call) for x, n in ((query, heads.query), (key, heads.key), (value, heads.key))
            )
    elif layout == "TND":
        query, key, value = (x.unsqueeze(0) for x in (query, key, value))
    # Drawn here, not in the operator, because a program would merge two equal calls.
    seed = call.seed
    if seed is None and call.dropout > 0:
        seed = paddle.randint(0, _SEEDS, [2], dtype="int64")
    out, softmax_max, softmax_sum, seed_offset = native.call(
        "pf_flash_attention",
        *(query, key, value, bias, mask, query_ends, key_ends, seed),
        operator_layout,
        heads.query if operator_layout in ("BSH", "SBH") else 0,
        call.scale,
        call.dropout,
        list(chain.from_iterable(plan.bands)),
        plan.align,
    )
    if mask is not None and not plan.packed and (plan.zero_rows or not paddle.in_dynamic_mode()):
        fully_masked = mask.all(-1)
        out = zero_queries(
            out,
            fully_masked if fully_masked.ndim > 1 else fully_masked.reshape([1, 1, -1]),
            operator_layout,
            heads.query,
        )
    if plan.packed and layout != "TND":
        batch, query_len = call.shapes.batch, call.shapes.query_len
        out, softmax_max, softmax_sum = (unpacked(x, call) for x in (out, softmax_max, softmax_sum))
        out = from_bsnd(out.reshape([batch, query_len, heads.query, heads.value_dim]), layout)
        softmax_max, softmax_sum = (
            x.reshape([batch, query_len, heads.query, -1]).transpose([0, 2, 1, 3])
            for x in (softmax_max, softmax_sum)
        )
    elif layout == "TND" and not plan.packed:
        out = out.squeeze(0)
        softmax_max, softmax_sum = (x.squeeze(0).transpose([1, 0, 2]) for x in (softmax_max, softmax_sum))
    return out, softmax_max, softmax_sum, seed_offset


def unsupported_reason(query, key, value, bias, call: AttentionCall) -> str | None:
    if dtype_name(query) == "float64":
        return "the host kernels do not support float64"
    return native.unsupported_reason(query, key, value, bias)


def mode(query, key, value, bias, call: AttentionCall) -> str:
    return f"pf_flash_attention, {call.plan.kind}{', TND' if call.plan.packed else ''}"


def computed(query, key, value, bias, call: AttentionCall) -> float:
    """The fraction of the scores computed, counted as in CANN: in blocks with an unmasked key."""
    return computed_fraction(call.plan, call.shapes) if call.plan.sequences else 1.0


def _ends(call: AttentionCall):
    """Cumulative lengths without the leading 0, int64."""
    if call.plan.sequences:
        return _constant_ends(call.plan.query_lens), _constant_ends(call.plan.key_lens)
    return tuple(ends[1:].astype("int64") for ends in (call.cu_seqlens_q, call.cu_seqlens_k))


def _constant_ends(lengths: tuple[int, ...]):
    if paddle.in_dynamic_mode():
        return _kept_ends(lengths)
    return paddle.to_tensor(list(accumulate(lengths)), dtype="int64")


@lru_cache(maxsize=64)
def _kept_ends(lengths: tuple[int, ...]):
    return paddle.to_tensor(list(accumulate(lengths)), dtype="int64", place=paddle.CPUPlace())
