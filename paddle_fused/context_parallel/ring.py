"""Ring attention: every rank holds a part of the sequence, and keys and values circulate around the ring.

A rank computes its queries with its own keys, then with those of the previous rank, and so on. The next keys
arrive while a block is computed. Outputs are merged in float32:

    M = max(m1, m2)     s = s1 exp(m1 - M) + s2 exp(m2 - M)
    O = (O1 s1 exp(m1 - M) + O2 s2 exp(m2 - M)) / s

In the backward pass the gradients of keys and values, float32 sums, follow their keys to the rank that holds
them.

Legend: B batch, S tokens of a rank, N and Nkv heads, D and Dv head sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.profiler import RecordEvent

from paddle_fused import masks
from paddle_fused.devices import default_device_of, is_captured
from paddle_fused.dispatch import Backend, FusedOp

from ..ops.arguments import check_number, no_16_bit_on_cpu
from ..ops.attention.call import check_heads, check_tensors
from ..ops.attention.layout import heads_of
from ..ops.layer import OperatorLayer
from . import RING_EVENT, kernels
from .blocks import Block, Pattern, Sizes, blocks, halves, pattern_of, work
from .zigzag import chunk_length

OPERATOR = "ring_attention"
GATHERED = "paddle_fused.context_parallel.gathered.gathered_attention"


def ring_attention(
    query,
    key,
    value,
    mask: masks.Mask | None = None,
    *,
    group,
    backward_group=None,
    scale: float | None = None,
):
    """softmax(scale * Q K^T over the unmasked keys) V; the ranks of ``group`` share the sequence.

    All ranks call it together, with tensors of equal shapes.

    Args:
        query, key, value: [B, S, N, D], [B, S, Nkv, D] and [B, S, Nkv, Dv], the tokens of this rank in zigzag
            order (`zigzag.split`). float32, bfloat16 or float16 (float64: composed only); N is a multiple of
            Nkv.
        mask: of the whole sequence: None, ``masks.causal()`` or ``masks.documents(...)`` with the lengths of
            the packed documents, which may cross ranks.
        group: the ranks that hold the sequence, from ``paddle.distributed.new_group``.
        backward_group: a second group of the same ranks, so that ranks send and receive at the same time. It
            is used if the number of ranks is even; otherwise ranks send and receive in turns. Call
            ``dist.barrier`` on both groups, in the same order on all ranks, before the first call.
        scale: default 1 / sqrt(D).

    Returns:
        [B, S, N, Dv] in query's dtype; gradients flow to query, key and value.

    Raises:
        ValueError: for other arguments, and for masks that need ``gathered_attention``.

    Source: Ring Attention with Blockwise Transformers (arXiv 2310.01889); the zigzag order as in MindSpeed
    and PaddleNLP.
    """
    if is_captured(query):
        raise ValueError(
            f"{OPERATOR}: the call is part of a captured program; accepted: dygraph, because a program "
            "would not order the transfers. Exclude this layer from paddle.jit.to_static."
        )
    check_tensors(query, key, value, None, "BSND", 0.0, OPERATOR)
    call = _call_of(query, key, value, group, mask, backward_group, scale)
    with default_device_of(query):
        return RING_ATTENTION(query, key, value, call)


@dataclass(frozen=True)
class RingCall:
    """The arguments of a call except its tensors."""

    group: Any
    backward_group: Any
    pattern: Pattern
    batch: int
    length: int
    scale: float
    value_dim: int

    def sizes(self, kernel) -> Sizes:
        return Sizes(self.batch, self.length, self.group.nranks, kernel.longest_causal, kernel.has_documents)

    def blocks(self, kernel, step: int) -> tuple[Block, ...]:
        """The blocks of this rank's queries and the keys that it holds after ``step`` transfers."""
        ranks, rank = self.group.nranks, self.group.rank
        return blocks(self.pattern, self.sizes(kernel), rank, (rank - step) % ranks)

    def own_halves(self, kernel) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
        """The blocks of this rank's own keys, to be computed at the beginning and at the end."""
        if self.group.nranks == 1:
            return self.blocks(kernel, 0), ()
        return halves(self.pattern, self.sizes(kernel), self.group.rank)

    @property
    def is_duplex(self) -> bool:
        """Whether sends and receives have a group each."""
        return self.backward_group is not None and self.group.nranks % 2 == 0


def _call_of(query, key, value, group, mask, backward_group, scale) -> RingCall:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.is_dist():
            raise ValueError(
                f"{OPERATOR}: {name} is a distributed tensor; accepted: the tokens of this rank. "
                "Pass its _local_value()."
            )
    if mask is not None and not isinstance(mask, masks.Mask):
        raise ValueError(
            f"{OPERATOR}: mask is {type(mask).__name__}; accepted: a mask of paddle_fused.masks, or None."
        )
    if group.rank < 0:
        raise ValueError(
            f"{OPERATOR}: this rank is not in the group {group.ranks}; call it on its ranks only."
        )
    if backward_group is not None and list(backward_group.ranks) != list(group.ranks):
        raise ValueError(
            f"{OPERATOR}: backward_group has the ranks {backward_group.ranks} and group {group.ranks}; "
            "accepted: the same ranks in the same order."
        )
    scale = None if scale is None else check_number(OPERATOR, "scale", scale)
    if scale is not None and not math.isfinite(scale):
        raise ValueError(f"{OPERATOR}: scale is {scale}; accepted: a finite number, or None for 1 / sqrt(D).")
    heads = heads_of("BSND", query.shape, key.shape, value.shape, None, OPERATOR)
    check_heads(heads, OPERATOR)
    batch, length = query.shape[:2]
    if key.shape[1] != length:
        raise ValueError(
            f"{OPERATOR}: query has {length} tokens and key {key.shape[1]}; accepted: the same tokens "
            "of this rank."
        )
    whole = length * group.nranks
    pattern = pattern_of(mask, whole, batch)
    if pattern is None:
        raise ValueError(
            f"{OPERATOR}: the mask is {mask!r}; accepted: None, masks.causal() and masks.documents(...) of "
            f"the whole sequence. {GATHERED} takes windows and dense masks."
        )
    if pattern.documents or (pattern.causal and group.nranks > 1):
        chunk_length(whole, group.nranks)
    scale = heads.head_dim**-0.5 if scale is None else scale
    return RingCall(group, backward_group, pattern, batch, length, scale, heads.value_dim)


class Pending:
    """Tensors in flight: to the next rank, and from the previous one."""

    def __init__(self, received: list, tasks: list, sent: list):
        self._received, self._tasks, self._sent = received, tasks, sent

    def wait(self) -> list:
        """The tensors of the previous rank."""
        for task in self._tasks:
            task.wait()
        self._tasks, self._sent = [], []
        return self._received


def pass_on(tensors: list, call: RingCall) -> Pending:
    """Starts to send tensors to the next rank, and to receive those of the previous rank.

    With two groups, both neighbors use the same group for a transfer, and a rank sends and receives in
    different groups. With one group, even ranks send first and odd ranks receive first, so that blocking
    transfers cannot deadlock.
    """
    group, rank = call.group, call.group.rank
    ranks = group.nranks
    groups = (group, call.backward_group) if call.is_duplex else (group, group)
    send_group, receive_group = groups[rank % 2], groups[1 - rank % 2]
    after, before = (group.ranks[(rank + step) % ranks] for step in (1, -1))
    sent = [x.contiguous() for x in tensors]
    received = [paddle.empty_like(x) for x in sent]

    def send() -> Iterator:
        return (dist.isend(x, after, send_group) for x in sent)

    def receive() -> Iterator:
        return (dist.irecv(x, before, receive_group) for x in received)

    sends_first = call.is_duplex or rank % 2 == 0
    order = (send, receive) if sends_first else (receive, send)
    with RecordEvent(RING_EVENT):
        tasks = [task for start in order for task in start()]
    return Pending(received, tasks, sent)


class Merged:
    """The output of all rows with the maximum and the sum of their softmax, in float32 (or float64)."""

    def __init__(self, query, value_dim: int):
        batch, length, heads, _ = query.shape
        dtype = "float64" if query.dtype == paddle.float64 else "float32"
        self.out = paddle.zeros([batch, length, heads, value_dim], dtype)
        self.row_max = paddle.full([batch, heads, length, 1], -1e30, dtype)  # finite: exp(-1e30 - m) is 0
        self.row_sum = paddle.zeros([batch, heads, length, 1], dtype)

    def add(self, block: Block, out, row_max, row_sum) -> None:
        rows, queries = block.rows, block.queries
        before_max, before_sum = (x[rows, :, queries] for x in (self.row_max, self.row_sum))
        top = paddle.maximum(before_max, row_max)
        before, new = (before_max - top).exp() * before_sum, (row_max - top).exp() * row_sum
        total = before + new
        share, new_share = ((x / total).transpose([0, 2, 1, 3]) for x in (before, new))
        merged = self.out[rows, queries] * share + out.astype(self.out.dtype) * new_share
        if merged.shape == self.out.shape:
            self.out, self.row_max, self.row_sum = merged, top, total
        else:
            self.out[rows, queries] = merged
            self.row_max[rows, :, queries] = top
            self.row_sum[rows, :, queries] = total


class _Ring(OperatorLayer):
    operator = OPERATOR

    @staticmethod
    def forward(ctx, query, key, value, call: RingCall, kernel):
        ctx.call, ctx.kernel = call, kernel
        ctx.wanted = [not x.stop_gradient for x in (query, key, value)]
        merged, held = Merged(query, call.value_dim), [key, value]
        steps = call.group.nranks
        for step in range(steps):
            arriving = pass_on(held, call) if step + 1 < steps else None
            for block in call.blocks(kernel, step):
                q, k, v = _cut(block, query, *held)
                merged.add(block, *kernel.forward(q, k, v, block.causal, block.documents))
            if arriving is not None:
                held = arriving.wait()
        out = merged.out.astype(query.dtype)
        ctx.save_for_backward(query, key, value, out, merged.row_max, merged.row_sum)
        return out

    @staticmethod
    def backward(ctx, out_grad):
        gradients = _gradients(ctx.call, ctx.kernel, ctx.saved_tensor(), out_grad)
        inputs = zip(gradients, ctx.saved_tensor()[:3], ctx.wanted, strict=True)
        return tuple(gradient.astype(x.dtype) if wanted else None for gradient, x, wanted in inputs)


def _gradients(call: RingCall, kernel, saved, out_grad) -> list:
    """The gradients of query, key and value, in float32 (or float64)."""
    query, key, value, out, row_max, row_sum = saved
    wide = row_max.dtype
    query_grad = paddle.zeros(query.shape, wide)

    def add_blocks(blocks, keys_and_values: list, sums: list) -> None:
        for block in blocks:
            rows, queries = block.rows, block.queries
            q, k, v = _cut(block, query, *keys_and_values)
            o, g = (x[rows, queries].contiguous() for x in (out, out_grad))
            statistics = (x[rows, :, queries] for x in (row_max, row_sum))
            dq, *others = kernel.backward(q, k, v, o, *statistics, g, block.causal, block.documents)
            _add(query_grad, rows, queries, dq)
            for total, gradient in zip(sums, others, strict=True):
                _add(total, rows, block.keys, gradient)

    def zeros() -> list:
        return [paddle.zeros(x.shape, wide) for x in (key, value)]

    steps, own, held = call.group.nranks, zeros(), [key, value]
    begin, end = call.own_halves(kernel)
    returning = None  # sums of the ranks that had the held keys before
    for step in range(steps):
        arriving = pass_on(held, call) if step + 1 < steps else None
        if step == 0:
            add_blocks(begin, held, own)
        else:
            sums = zeros()
            add_blocks(call.blocks(kernel, step), held, sums)
            if returning is not None:
                sums = [a + b for a, b in zip(sums, returning.wait(), strict=True)]
            returning = pass_on(sums, call)
        if arriving is not None:
            held = arriving.wait()
    add_blocks(end, [key, value], own)
    if returning is not None:
        own = [a + b for a, b in zip(own, returning.wait(), strict=True)]
    return [query_grad, *own]


def _cut(block: Block, query, key, value):
    rows, keys = block.rows, block.keys
    parts = query[rows, block.queries], key[rows, keys], value[rows, keys]
    return tuple(part.contiguous() for part in parts)


def _add(total, rows: slice, tokens: slice, gradient) -> None:
    total[rows, tokens] = total[rows, tokens] + gradient.astype(total.dtype)


def _backend(kernel_of: Callable[[RingCall], Any], unsupported_reason: Callable[..., str | None]) -> Backend:
    def run(query, key, value, call: RingCall):
        return _Ring.apply(query, key, value, call, kernel_of(call))

    def mode(query, key, value, call: RingCall) -> str:
        groups = "two groups" if call.is_duplex else "one group"
        return ", ".join(filter(None, (kernel_of(call).mode(), f"{call.group.nranks} ranks", groups)))

    def computed(query, key, value, call: RingCall) -> float:
        kernel, ranks = kernel_of(call), call.group.nranks
        scores = sum(work(block) for step in range(ranks) for block in call.blocks(kernel, step))
        return scores / max(call.batch * call.length * call.length * ranks, 1)

    return Backend(run, unsupported_reason, mode, computed)


RING_ATTENTION = FusedOp(
    OPERATOR,
    ascend=_backend(
        lambda call: kernels.Plugin(call.scale, call.value_dim),
        lambda query, key, value, call: kernels.plugin_reason(query, key, value, call.scale),
    ),
    native=_backend(
        lambda call: kernels.Host(call.scale),
        lambda query, key, value, call: kernels.host_reason(query, key, value),
    ),
    composed=_backend(
        lambda call: kernels.Composed(call.scale),
        lambda query, key, value, call: no_16_bit_on_cpu(query),
    ),
    communicates=True,
)
