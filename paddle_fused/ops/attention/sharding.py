"""Attention on distributed tensors, sharded by batch and by heads.

Every process computes its own sequences and heads without communication. Query heads share key heads, so both
are split into the same number of shards. Layouts that merge heads and head size cannot be sharded by heads.

Legend: B batch, N heads.
"""

from __future__ import annotations

from dataclasses import replace

from paddle_fused import masks
from paddle_fused.masks.types import Dense, Intersection, Mask
from paddle_fused.sharding import Layout, Sharding, ShardingRule
from paddle_fused.sharding.local_map import is_split

from .call import AttentionCall
from .layout import heads_of

_DIMS = {
    "BSND": ("batch", None, "heads", None),
    "BNSD": ("batch", "heads", None, None),
    "BSH": ("batch", None, None),
    "SBH": (None, "batch", None),
    "TND": (None, "heads", None),
}
_SCORES = ("batch", "heads", None, None)  # bias, masks and statistics


def sharding_rule(query, key, value, bias, call: AttentionCall) -> ShardingRule:
    tokens = _DIMS[call.layout]
    statistics = (None, "heads", None) if call.layout == "TND" else _SCORES
    inputs = {"query": tokens, "key": tokens, "value": tokens, "bias": _SCORES}
    return ShardingRule(inputs, (tokens, statistics, statistics, None))  # every process draws a separate seed


def localise(layout: Layout, by_name: dict, part) -> dict:
    """The call for the local shards: their sizes, and the mask of their sequences and heads."""
    call, query, key, value, bias = (by_name[name] for name in ("call", "query", "key", "value", "bias"))
    mask = None if call.mask is None else _part_of(call.mask, layout, part)
    # Tokens are not sharded, so the lengths in layout TND stay valid.
    shapes = call.shapes if call.layout == "TND" else masks.shapes_of(call.layout, query.shape, key.shape)
    same = (mask, shapes) == (call.mask, call.shapes)
    own = replace(
        call,
        heads=heads_of(call.layout, query.shape, key.shape, value.shape, _num_heads(call), call.operator),
        mask=mask,
        shapes=shapes,
        plan=call.plan if same else masks.compile_mask(mask, shapes, may_pack=bias is None),
    )
    own.check(bias)
    return {"call": own}


def _num_heads(call: AttentionCall) -> int | None:
    return call.heads.query if call.layout in ("BSH", "SBH") else None


def _part_of(mask: Mask, layout: Layout, part) -> Mask:
    if isinstance(mask, Intersection):
        return Intersection(tuple(_part_of(member, layout, part) for member in mask.members))
    if isinstance(mask, Dense) and is_split(mask.hidden):
        dims = _SCORES if len(mask.hidden.shape) == 4 else (None, None)
        return Dense(part("the mask", mask.hidden, dims), mask.invalid_rows)
    if layout.count("batch") == layout.count("heads") == 1:
        return mask  # keeps the cache of checked values
    return mask.of_part(layout.own("batch", mask.batch_size or 1), layout.own("heads", mask.heads))


def mask_tensors(query, key, value, bias, call: AttentionCall) -> list:
    return [part.hidden for part in (call.mask.parts if call.mask else ()) if isinstance(part, Dense)]


def check_lengths_are_local(operator: str, **lengths) -> None:
    """Raises ValueError for lengths in a distributed tensor, which Paddle 3.3 cannot read on a device."""
    for name, ends in lengths.items():
        if is_split(ends):
            raise ValueError(
                f"{operator}: {name} is a distributed tensor; accepted: a list of ints or a local "
                "tensor. Pass its _local_value()."
            )


SHARDING = Sharding(("query", "key", "value", "bias", "call"), sharding_rule, localise, mask_tensors)
