"""A call of attention as the backends receive it, and the checks for all backends.

Legend: B batch, Sq and Skv queries and keys, T tokens, N and Nkv heads, D and Dv head sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paddle_fused import contracts, masks
from paddle_fused.masks.row_indices import RowIndices
from paddle_fused.masks.tensors import check_rows, hidden_tensor
from paddle_fused.masks.types import Dense, Documents

from ..arguments import check_one_device, check_tensor, dtype_name
from .layout import Heads, check_rank


@dataclass(frozen=True)
class AttentionCall:
    """The arguments of a call except its tensors. ``dropout`` is 0 outside training."""

    layout: str
    heads: Heads
    mask: masks.Mask | None
    shapes: masks.Shapes
    plan: masks.MaskPlan
    scale: float
    dropout: float
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    returns_statistics: bool
    operator: str
    seed: Any = None  # of dropout: int64 [2], or None to draw one
    results: dict = field(default_factory=dict, init=False, compare=False, repr=False)  # of `once_per_call`

    def check(self, bias) -> None:
        """Checks sizes against CANN's limits and the shape of the bias, and rejects fully masked rows."""
        heads, shapes = self.heads, self.shapes
        check_heads(heads, self.operator)
        if self.layout == "TND":
            self._check_sequences()
        else:
            self._at_most("attention.batch", "the batch size", shapes.batch)
            self._at_most("attention.sequence", "the number of queries", shapes.query_len)
            self._at_most("attention.sequence", "the number of keys", shapes.key_len)
            if self.plan.prefix is not None:
                self._at_most("attention.batch_with_prefix", "the batch size with a prefix", shapes.batch)
        if shapes.key_len == 0 and shapes.query_len:
            contracts.refuse(
                "attention.no_keys", self.operator, f"there are {shapes.query_len} queries and no keys"
            )
        for part in () if self.mask is None else self.mask.parts:
            if isinstance(part, (Dense, RowIndices)) and part.heads not in (1, -1, heads.query):
                contracts.refuse(
                    "attention.mask_shape", self.operator, f"{part!r} is used for {heads.query} heads"
                )
        if bias is not None:
            self._check_bias(bias)
        check_rows(self.plan, functools.partial(full_mask, self), self.operator)

    def _check_sequences(self) -> None:
        shapes = self.shapes
        self._at_most("attention.tokens", "the number of query tokens", shapes.query_len)
        self._at_most("attention.tokens", "the number of key tokens", shapes.key_len)
        count = len(shapes.query_lens or self.plan.sequences)
        if shapes.query_lens is not None and count == 0:
            contracts.refuse("attention.sequences", self.operator, "no sequence")
        self._at_most("attention.sequences", "the number of sequences", count)

    def _check_bias(self, bias) -> None:
        shapes, heads = self.shapes, self.heads
        if self.layout == "TND":
            raise ValueError(
                f"{self.operator}: bias is passed in layout TND; accepted: layouts BSH, SBH, BSND and BNSD."
            )
        b, n, q, k = shapes.batch, heads.query, shapes.query_len, shapes.key_len
        accepted = ((b, n, q, k), (b, n, 1, k), (1, n, q, k))
        shape = [None if size == -1 else size for size in bias.shape]
        if not any(_fits(shape, sizes) for sizes in accepted):
            received = f"bias has shape {list(bias.shape)} for B {b}, N {n}, Sq {q}, Skv {k}"
            contracts.refuse("attention.pse_shape", self.operator, received)

    def _at_most(self, rule: str, what: str, size: int | None) -> None:
        if size is not None and size > contracts.limit(rule):
            contracts.refuse(rule, self.operator, f"{what} is {size}")


def once_per_call(function: Callable[[AttentionCall], Any]):
    """Computes ``function(call)`` at most once per call; checks, dispatch and run share the result."""

    @functools.wraps(function)
    def kept(call: AttentionCall):
        if function not in call.results:
            call.results[function] = function(call)
        return call.results[function]

    return kept


@once_per_call
def full_mask(call: AttentionCall):
    """The full mask of the call's plan: bool [Sq, Skv] or [B or 1, N or 1, Sq, Skv], True = masked."""
    return hidden_tensor(call.plan.full, call.plan.full_shape)


def check_lengths(mask, layout: str, cu_seqlens_q, operator: str) -> None:
    """Raises ContractError if layout TND has neither lengths nor a documents mask."""
    parts = () if mask is None else mask.parts
    if layout == "TND" and cu_seqlens_q is None and not any(isinstance(part, Documents) for part in parts):
        received = "the layout is TND, without cu_seqlens_q and cu_seqlens_k"
        contracts.refuse("attention.lengths_from_0", operator, received)


def check_tensors(query, key, value, bias, layout: str, dropout: float, operator: str) -> None:
    """Checks types, dtypes, ranks and shared sizes. Raises ContractError or ValueError."""
    tensors = {"query": query, "key": key, "value": value}
    for name, tensor in tensors.items():
        check_tensor(operator, name, tensor)
    if bias is not None:
        check_tensor(operator, "bias", bias)
    check_one_device(operator, **tensors, bias=bias)
    for name, tensor in {**tensors, "bias": bias}.items():
        if tensor is not None and tensor.dtype != query.dtype:
            received = f"{name} is {dtype_name(tensor)} and query is {dtype_name(query)}"
            contracts.refuse("attention.same_dtype", operator, received)
    check_rank(operator, layout, {name: tensor.shape for name, tensor in tensors.items()})
    q, k, v = (list(tensor.shape) for tensor in tensors.values())
    received = f"query has shape {q}, key {k} and value {v} in layout {layout}"
    merged = layout in ("BSH", "SBH")
    if not _fits(k if merged else k[:-1], v if merged else v[:-1], but_last=merged):
        contracts.refuse("attention.key_value", operator, received)
    batch = {"BSH": 0, "SBH": 1, "BSND": 0, "BNSD": 0}.get(layout)
    if batch is not None and not _fits([q[batch]], [k[batch]]):
        contracts.refuse("attention.same_batch", operator, received)
    if not merged and q[-1] != k[-1]:
        contracts.refuse("attention.same_head_dim", operator, received)
    if not 0 <= dropout < 1:
        contracts.refuse("attention.keep_prob", operator, f"dropout is {dropout}")


def check_heads(heads: Heads, operator: str) -> None:
    for count in (heads.query, heads.key):
        if not 1 <= count <= contracts.limit("attention.heads"):
            received = f"query has {heads.query} heads and key {heads.key}"
            contracts.refuse("attention.heads", operator, received)
    if heads.query % heads.key:
        received = f"query has {heads.query} heads and key {heads.key}"
        contracts.refuse("attention.head_groups", operator, received)
    if not 1 <= heads.head_dim <= contracts.limit("attention.head_dim"):
        contracts.refuse("attention.head_dim", operator, f"the head size is {heads.head_dim}")
    if not 1 <= heads.value_dim <= heads.head_dim:
        received = f"the head size of key is {heads.head_dim} and of value {heads.value_dim}"
        contracts.refuse("attention.value_head_dim", operator, received)


def _fits(shape, expected, but_last: bool = False) -> bool:
    """Whether the sizes are equal. None and -1 are unknown sizes."""
    shape, expected = (list(sizes)[: -1 if but_last else None] for sizes in (shape, expected))
    unknown = (None, -1)
    return len(shape) == len(expected) and all(
        a == b or a in unknown or b in unknown for a, b in zip(shape, expected, strict=True)
    )
