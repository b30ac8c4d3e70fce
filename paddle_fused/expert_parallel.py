"""Expert parallelism: experts are sharded over ranks; tokens are dispatched to them, and results combined.

    out[t] = sum over k < K of probs[t, k] * expert_i(tokens[t]),  i = indices[t, k]

Rows are sorted by expert, and so by rank. The ranks exchange the number of rows of every expert, which each
rank reads once on the host, and then the rows. The pairwise rounds cannot deadlock, even if a send blocks
until it is received. Work that does not need the experts, such as a shared expert, can be computed during the
dispatch.

With several chunks, a rank's experts are computed in groups of consecutive experts: while a group computes,
the rows of the next groups arrive, and the results of the previous ones return. The gradients are
exchanged likewise. An expert's rows stay together, so results are bit-identical for any number of chunks.

Legend: T tokens of this rank, H hidden size, K experts per token, E experts of all ranks, n ranks, M rows
that this rank receives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ExpertExchange:
    """The sizes that determine the best number of chunks.

    Attributes:
        rows: rows that a rank sends, the mean of all ranks rounded up to a power of two.
        hidden: H.
        experts: the number of experts of a rank.
        dtype: of the rows.
        ranks: n.
    """

    rows: int
    hidden: int
    experts: int
    dtype: str
    ranks: int

    def __str__(self) -> str:
        sizes = f"{self.rows}x{self.hidden} to {self.experts} experts"
        return f"all_to_all:{sizes} {self.dtype} on {self.ranks} ranks"


def expert_parallel(
    tokens,
    probs,
    indices,
    experts: Callable,
    *,
    num_experts: int,
    group,
    meanwhile: Callable | None = None,
    chunks: int | Callable[[ExpertExchange, Callable[[int], object]], int] = 1,
):
    """The MoE layer's output for this rank's tokens. Collective.

    Results and gradients are bit-identical to one rank with all experts if ``experts`` computes every row
    independently of the others. The gradient of an expert's weights is the sum over the tokens of all ranks.

    Args:
        tokens: [T, H]; T may differ between ranks, and may be 0.
        probs: [T, K].
        indices: [T, K] integers, the experts of each token, counted over all ranks. E drops a choice: it
            contributes zeros.
        experts: ``experts(rows, sizes, own)`` returns the results [M, H] of this rank's experts ``own``, a
            slice, for rows [M, H]. ``sizes`` lists the number of rows of each of them; the rows of an expert
            are consecutive. M may be 0. The result needs a gradient on all ranks or on none.
        num_experts: E, a multiple of n. Rank r has the experts r * E / n to (r + 1) * E / n - 1.
        group: of ``paddle.distributed``.
        meanwhile: called without arguments during the dispatch of the forward pass. It may communicate in
            other groups.
        chunks: the maximum number of groups of experts whose computation overlaps with the exchange; the same
            on all ranks. With 2 or more, gradients of weights are accumulated in their ``grad`` only, not
            returned by ``paddle.grad``. A function ``chunks(exchange, run)`` chooses the number: ``run(n)``
            runs evenly distributed rows of the same sizes in n chunks, to be timed. Collective.

    Returns:
        [T, H], dtype of the experts' results; with ``meanwhile``, the pair (result, ``meanwhile()``).

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
    counts = _counts_of_ranks(indices, num_experts, group)
    dropped = indices.size - int(counts[group.rank].sum())
    rows, sorted_indices = moe_token_permute(tokens, indices, -dropped)
    if callable(chunks):
        chunks = _chosen(chunks, rows, counts, experts, group)
    routes = Route(counts, group.rank).chunks(chunks)
    arriving = _send(rows, routes, group)
    shared = None if meanwhile is None else meanwhile()
    if len(routes) > 1:
        returned = _overlapped(rows, experts, routes, group, arriving)
    else:
        (route,) = routes
        received = RowsToRanks.apply(rows, route.sent, route.received, group, *arriving)
        by_expert, order = moe_token_permute(received, paddle.to_tensor(route.experts_of_received))
        del received
        results = moe_token_unpermute(experts(by_expert, route.sizes, route.own), order)
        returned = RowsToRanks.apply(results, route.received, route.sent, group)
    out = moe_token_unpermute(returned, sorted_indices, probs)
    return out if meanwhile is None else (out, shared)


@paddle.no_grad()
def _chosen(choose: Callable, rows, counts: np.ndarray, experts: Callable, group) -> int:
    """The number of chunks that ``choose`` selects for the rows of all ranks."""
    (ranks, total), (_, hidden) = counts.shape, rows.shape
    mean = 1 << (-(-int(counts.sum()) // ranks) - 1).bit_length()
    even = np.full_like(counts, -(-mean // total))
    trial = paddle.full([int(even[0].sum()), hidden], 0.5, rows.dtype)

    def run(chunks: int):
        routes = Route(even, group.rank).chunks(chunks)
        return _overlapped(trial, experts, routes, group, _send(trial, routes, group))

    dtype = str(rows.dtype).removeprefix("paddle.")
    return choose(ExpertExchange(mean, hidden, total // ranks, dtype, ranks), run)


class Route:
    """The rows that ranks exchange for one MoE layer, or for some of each rank's experts.

    Args:
        counts: [n, E], the number of rows of each rank for each expert.
        rank: this rank.
        first: the first of the experts, counted over those of a rank.

    Attributes:
        own: the slice of this rank's experts.
    """

    def __init__(self, counts: np.ndarray, rank: int, first: int = 0):
        ranks, experts = counts.shape
        self._by_owner = counts.reshape([ranks, ranks, experts // ranks])  # [from, to, expert of the rank]
        self._rank = rank
        self.own = slice(first, first + experts // ranks)

    def chunks(self, count: int) -> list[Route]:
        """The routes of at most ``count`` groups of consecutive experts of every rank."""
        ranks, _, experts = self._by_owner.shape
        count = max(1, min(count, experts))
        bounds = pairwise(experts * number // count for number in range(count + 1))
        return [
            Route(self._by_owner[:, :, first:last].reshape([ranks, -1]), self._rank, first)
            for first, last in bounds
        ]

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
        """The number of rows of each expert of this rank."""
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
    counts = paddle_release.counts_of(indices, num_experts + 1).astype("int32")  # with dropped choices
    of_ranks: list[paddle.Tensor] = []
    dist.all_gather(of_ranks, counts, group=group)
    table = paddle.stack(of_ranks).numpy()
    if table[group.rank].sum() != indices.size:
        raise ValueError(
            f"{OPERATOR}: {indices.size - table[group.rank].sum()} of {indices.size} indices are out of "
            f"range; accepted: the expert ids 0 to {num_experts - 1} of all ranks, or {num_experts} to "
            "drop a choice."
        )
    return table[:, :num_experts]


class RowsToRanks(PyLayer):
    """Sends consecutive rows [M, H] to the ranks of a group and receives rows, in rank order.

    The gradient is the same exchange in the other direction. ``pending``: the exchange, if it has started.
    """

    @staticmethod
    def forward(ctx, rows, sent: Sequence[int], received: Sequence[int], group, pending=None):
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _joined(rows, (pending or _start(_cut(rows, sent), received, group)).wait())

    @staticmethod
    def backward(ctx, gradient):
        return _joined(gradient, _start(_cut(gradient, ctx.received), ctx.sent, ctx.group).wait())


def _overlapped(rows, experts: Callable, routes: list[Route], group, arriving: list[PendingExchange]):
    """The experts' results for ``rows``, whose exchange has started, in their order."""
    learns = paddle.is_grad_enabled()
    if learns and rows.stop_gradient:
        rows = rows.detach()
        rows.stop_gradient = False  # the weights need gradients, which PyLayer does not know
    return OverlappedExperts.apply(rows, experts, routes, group, arriving, learns)


class OverlappedExperts(PyLayer):
    """The results of experts, in chunks, overlapped with the transfers of other chunks.

    Every chunk has a separate graph; its backward pass starts when the gradients of its results arrive.
    """

    @staticmethod
    def forward(ctx, rows, experts: Callable, routes, group, arriving, learns: bool):
        ctx.routes, ctx.group, ctx.graphs = routes, group, []

        def compute(by_expert, route):
            by_expert.stop_gradient = not learns
            with paddle.set_grad_enabled(learns):
                results = experts(by_expert, route.sizes, route.own)
            if learns:
                ctx.graphs.append((by_expert, results))
            values = results.detach()
            results._clear_dataptr()  # the backward pass needs the graph only
            return values

        return _through(rows, routes, group, arriving, compute)

    @staticmethod
    def backward(ctx, gradient):
        def compute(by_expert, _):
            inputs, results = ctx.graphs.pop(0)
            paddle.autograd.backward([results], [by_expert])
            return inputs.grad

        arriving = _send(gradient, ctx.routes, ctx.group)
        return _through(gradient, ctx.routes, ctx.group, arriving, compute)


def _through(rows, routes: list[Route], group, arriving: list[PendingExchange], compute: Callable):
    """``compute(by_expert, route)`` of the rows of every chunk on the ranks of their experts, and back."""
    returning = []
    for route, pending in zip(routes, arriving, strict=True):
        received = _joined(rows, pending.wait())
        by_expert, order = moe_token_permute(received, paddle.to_tensor(route.experts_of_received))
        del received
        results = moe_token_unpermute(compute(by_expert, route), order)
        returning.append(_start(_cut(results, route.received), route.sent, group))
        del by_expert, results
    by_rank = zip(*(pending.wait() for pending in returning), strict=True)
    return _joined(rows, (part for parts in by_rank for part in parts))


@paddle.no_grad()
def _send(rows, routes: list[Route], group) -> list[PendingExchange]:
    """Start to send the rows of every chunk to the ranks of their experts."""
    by_rank = zip(*(route.sent for route in routes), strict=True)
    parts = _cut(rows, [count for counts in by_rank for count in counts])
    return [_start(parts[i :: len(routes)], route.received, group) for i, route in enumerate(routes)]


def _cut(rows, sizes: Iterable[int]) -> list:
    return [rows[begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]


@paddle.no_grad()
def _start(parts: list, received: Sequence[int], group) -> PendingExchange:
    width = parts[0].shape[1]
    return start_exchange(parts, [[count, width] for count in received], group)


def _joined(rows, parts: Iterable):
    """All ``parts`` with rows, concatenated; their width and dtype are those of ``rows``."""
    parts = [part for part in parts if part.size]
    return paddle.concat(parts) if parts else paddle.empty([0, rows.shape[1]], rows.dtype)
