"""All-to-all in pairwise rounds, and the exchange of tokens for heads.

paddle-custom-npu has no all-to-all. Paddle then sends and receives one part after the other in rank order,
and most ranks wait: on 8 ranks for the time of 47 parts. In pairwise rounds every rank is always busy: n - 1
rounds (n if n is odd), each with one send and one receive. The lower rank of a pair sends first, so ranks
cannot deadlock, even if a send blocks until it is received, as on a card.

Legend: B batch, S tokens of the whole sequence, N heads, D head size, n ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import paddle
import paddle.distributed as dist
from paddle.autograd import PyLayer
from paddle.profiler import RecordEvent

from . import EXCHANGE_EVENT


def partners(rank: int, ranks: int) -> list[int]:
    """The rank with which ``rank`` exchanges parts in each round; itself in the round in which it is idle.

    Every pair of ranks meets once (circle method of round-robin tournaments). If the number of ranks is even,
    the last rank stays in place and meets the rank that would be idle.
    """
    even = ranks % 2 == 0
    moving = ranks - 1 if even else ranks
    rounds = []
    for turn in range(moving):
        if even and rank == moving:
            partner = turn * (ranks // 2) % moving  # 2 * partner = turn
        else:
            partner = (turn - rank) % moving
            if even and partner == rank:
                partner = moving
        rounds.append(partner)
    return rounds


class PendingExchange:
    """An `exchange` whose transfers have started."""

    def __init__(self, results: list, sent: list, tasks: list):
        self._results, self._tasks = results, tasks
        self._sent = sent  # must live until the tasks are done

    def wait(self) -> list:
        """The tensors received, in rank order. No references to sent or received tensors are kept."""
        for task in self._tasks:
            task.wait()
        results, self._results, self._sent, self._tasks = self._results, [], [], []
        return results


def start_exchange(parts: Sequence[paddle.Tensor], shapes: Sequence[Sequence[int]], group) -> PendingExchange:
    """Send ``parts[r]`` to rank r of ``group`` and receive a tensor of shape ``shapes[r]`` from it.

    Collective, without a gradient. All tensors have one dtype; tensors without elements are not sent. The
    transfers run while the caller computes. ``parts`` must not change before `PendingExchange.wait`.

    Args:
        parts: one tensor per rank of the group, in rank order. The own part is returned unchanged; it may be
            None.
        shapes: the shapes of the results, in rank order.
        group: of ``paddle.distributed``.
    """
    rank, ranks = group.rank, group.nranks
    assert len(parts) == len(shapes) == ranks, (len(parts), len(shapes), ranks)
    results = [None] * ranks
    results[rank] = parts[rank]
    sent, tasks = [], []
    for partner in partners(rank, ranks):
        if partner == rank:
            continue
        part, peer = parts[partner].contiguous(), group.ranks[partner]
        results[partner] = paddle.empty(shapes[partner], part.dtype)
        sent.append(part)
        transfers = [(dist.isend, part), (dist.irecv, results[partner])]
        for transfer, tensor in transfers if rank < partner else reversed(transfers):
            if tensor.size:
                with RecordEvent(EXCHANGE_EVENT):
                    tasks.append(transfer(tensor, peer, group))
    return PendingExchange(results, sent, tasks)


def exchange(parts: Sequence[paddle.Tensor], shapes: Sequence[Sequence[int]], group) -> list:
    """`start_exchange`, and the tensors received, in rank order."""
    return start_exchange(parts, shapes, group).wait()


class Exchange(PyLayer):
    """`exchange` with a gradient, the same exchange in the other direction; the own part is left out."""

    @staticmethod
    def forward(ctx, shapes: Sequence[Sequence[int]], group, *parts):
        ctx.shapes, ctx.group = [part.shape for part in parts], group
        return _exchange_others(parts, shapes, group)

    @staticmethod
    def backward(ctx, *gradients):
        return _exchange_others(gradients, ctx.shapes, ctx.group)


def _exchange_others(parts: Sequence, shapes: Sequence, group) -> tuple:
    before, after = slice(group.rank), slice(group.rank, None)
    results = exchange([*parts[before], None, *parts[after]], [*shapes[before], None, *shapes[after]], group)
    return tuple(result for result in results if result is not None)


def _exchange_parts(parts: Sequence, shapes: Sequence[Sequence[int]], group) -> list:
    """`exchange` with a gradient."""
    others = [rank for rank in range(group.nranks) if rank != group.rank]
    if not others:
        return list(parts)
    results = Exchange.apply([shapes[rank] for rank in others], group, *[parts[rank] for rank in others])
    return [*results[: group.rank], parts[group.rank], *results[group.rank :]]


def tokens_to_heads(x, heads: Sequence[tuple[int, int]], tokens: Sequence[int], group):
    """[B, own tokens, N, D] -> [B, S, own heads, D], with a gradient. Collective.

    Args:
        heads: the first head of each rank and the end of its heads. Ranges may overlap, so that several ranks
            get a head; its gradient is the sum of theirs.
        tokens: the number of tokens of each rank, which are contiguous: rank r's come after rank r - 1's.
    """
    batch, _, _, size = x.shape
    start, end = heads[group.rank]
    shapes = [[batch, count, end - start, size] for count in tokens]
    parts = [x[:, :, first:last] for first, last in heads]
    return paddle.concat(_exchange_parts(parts, shapes, group), axis=1)


def heads_to_tokens(x, heads: Sequence[tuple[int, int]], tokens: Sequence[int], group):
    """The inverse of `tokens_to_heads`: [B, S, own heads, D] -> [B, own tokens, N, D]; no ranges overlap."""
    batch, _, _, size = x.shape
    shapes = [[batch, tokens[group.rank], last - first, size] for first, last in heads]
    return paddle.concat(_exchange_parts(paddle.split(x, list(tokens), axis=1), shapes, group), axis=2)
