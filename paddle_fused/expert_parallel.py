"""Experts over ranks: every rank has some experts, and tokens travel to the ranks of their experts and back.

    out[t] = sum over k < K of probs[t, k] * expert_i(tokens[t]),  i = indices[t, k]

Rows are sorted by expert, and so by rank. The ranks exchange the number of rows of every expert, which each
reads once on the host, then the rows, in pairwise rounds that cannot deadlock where a send blocks until it is
received. No token is dropped. Work that does not need the experts, such as a shared expert, can be computed
while the rows travel.

Legend: T tokens of this rank, H hidden size, K experts per token, E experts of all ranks, n ranks, M rows
that this rank receives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.autograd import PyLayer

from . import moe_token_permute, moe_token_unpermute, paddle_release
from .context_parallel.exchange import PendingExchange, start_exchange
from .devices import is_captured

OPERATOR = "expert_parallel"


def expert_parallel(
    tokens, probs, indices, experts: Callable, *, num_experts: int, group, meanwhile: Callable | None = None
):
    """The mixture of all experts for this rank's tokens. Collective.

    Results and gradients have the bits of one rank with all experts, if ``experts`` computes every row
    independently of the others. The gradient of an expert's weights is the sum over the tokens of all ranks.

    Args:
        tokens: [T, H]; T may differ between ranks, and may be 0.
        probs: [T, K].
        indices: [T, K] integers, the experts of each token, counted over all ranks.
        experts: ``experts(rows, sizes)`` returns the results [M, H] of this rank's experts for rows [M, H].
            ``sizes`` lists the number of rows of each expert; the rows of an expert are consecutive. M may be
            0. The result needs a gradient on all ranks or on none.
        num_experts: E, a multiple of n. Rank r has the experts r * E / n to (r + 1) * E / n - 1.
        group: of ``paddle.distributed``.
        meanwhile: called without arguments while the rows travel in the forward pass. It may communicate in
            other groups.

    Returns:
        [T, H], dtype of the experts' results; with ``meanwhile``, also the result of that.

    Raises:
        ValueError: E is not a multiple of n, an index is not an expert, or the call is captured.
    """
    if is_captured(tokens):
        raise ValueError(
            f"{OPERATOR}: the call is captured by paddle.jit.to_static, but the number of rows that ranks "
            "exchange is read on the host; call it in dynamic mode."
        )
    if num_experts < 1 or num_experts % group.nranks:
        raise ValueError(
            f"{OPERATOR}: {num_experts} experts for {group.nranks} ranks; accepted: a multiple of the ranks."
        )
    rows, sorted_indices = moe_token_permute(tokens, indices)
    route = Route(_counts_of_ranks(indices, num_experts, group), group.rank)
    pending = _start(rows, route.sent, route.received, group)
    shared = None if meanwhile is None else meanwhile()
    received = RowsToRanks.apply(rows, route.sent, route.received, group, pending)
    by_expert, order = moe_token_permute(received, paddle.to_tensor(route.experts_of_received))
    results = moe_token_unpermute(experts(by_expert, route.sizes), order)
    returned = RowsToRanks.apply(results, route.received, route.sent, group)
    out = moe_token_unpermute(returned, sorted_indices, probs)
    return out if meanwhile is None else (out, shared)


class Route:
    """The rows that ranks exchange for one mixture.

    Args:
        counts: [n, E], the number of rows of each rank for each expert.
        rank: this rank.
    """

    def __init__(self, counts: np.ndarray, rank: int):
        ranks, experts = counts.shape
        self._by_owner = counts.reshape([ranks, ranks, experts // ranks])  # [from, to, expert of the rank]
        self._rank = rank

    @cached_property
    def sent(self) -> list[int]:
        """The number of rows that this rank sends to each rank."""
        return self._by_owner[self._rank].sum(-1).tolist()

    @cached_property
    def received(self) -> list[int]:
        """The number of rows that this rank receives from each rank."""
        return self._own.sum(-1).tolist()

    @cached_property
    def sizes(self) -> list[int]:
        """The number of rows of each of this rank's experts."""
        return self._own.sum(0).tolist()

    @cached_property
    def experts_of_received(self) -> np.ndarray:
        """The expert of each received row, [M], counted over this rank's experts; rows are in rank order."""
        ranks, experts = self._own.shape
        return np.repeat(np.tile(np.arange(experts), ranks), self._own.reshape(-1))

    @property
    def _own(self) -> np.ndarray:
        return self._by_owner[:, self._rank]


def _counts_of_ranks(indices, num_experts: int, group) -> np.ndarray:
    """The number of rows of each rank for each expert, [n, E], read on the host. Collective."""
    counts = paddle_release.counts_of(indices, num_experts).astype("int32")
    of_ranks: list[paddle.Tensor] = []
    dist.all_gather(of_ranks, counts, group=group)
    table = paddle.stack(of_ranks).numpy()
    if table[group.rank].sum() != indices.size:
        raise ValueError(
            f"{OPERATOR}: {indices.size - table[group.rank].sum()} of {indices.size} indices are not between "
            f"0 and {num_experts - 1}; accepted: the experts of all ranks."
        )
    return table


class RowsToRanks(PyLayer):
    """Sends consecutive rows [M, H] to the ranks of a group and receives rows, in rank order.

    The gradient is the same exchange in the other direction. ``pending``: the exchange, if it has started.
    """

    @staticmethod
    def forward(ctx, rows, sent: Sequence[int], received: Sequence[int], group, pending=None):
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _joined(rows, pending or _start(rows, sent, received, group))

    @staticmethod
    def backward(ctx, gradient):
        return _joined(gradient, _start(gradient, ctx.received, ctx.sent, ctx.group))


@paddle.no_grad()
def _start(rows, sent: Sequence[int], received: Sequence[int], group) -> PendingExchange:
    parts = [rows[begin:end] for begin, end in pairwise(accumulate(sent, initial=0))]
    return start_exchange(parts, [[count, rows.shape[1]] for count in received], group)


def _joined(rows, pending: PendingExchange):
    """The rows received instead of ``rows``."""
    results = [part for part in pending.wait() if part.size]
    return paddle.concat(results) if results else paddle.empty([0, rows.shape[1]], rows.dtype)
