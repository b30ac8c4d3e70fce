"""Ulysses: attention of a sequence that is split over ranks, each rank with all tokens of some heads.

    out = tokens(attention(heads(Q), heads(K), heads(V)))

Every rank gives its tokens of the other ranks' heads, and gets the other ranks' tokens of its own heads. The
attention is that of one rank: the operators, masks and sums are the same.

Source: DeepSpeed Ulysses, arXiv 2309.14509. Legend: B batch, S tokens of the whole sequence, s tokens of this
rank, N and Nkv heads of query and of key and value, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import paddle

import paddle_fused

from .exchange import heads_to_tokens, shares, tokens_to_heads

OPERATOR = "ulysses_attention"


def ulysses_attention(
    query,
    key,
    value,
    mask=None,
    *,
    group,
    tokens: Sequence[int] | None = None,
    attention: Callable | None = None,
    **options,
):
    """`paddle_fused.flash_attention` of a sequence of which every rank has contiguous tokens. Collective.

    With at least one key head per rank, the results and the gradients have the bits of one rank. With fewer,
    several ranks compute parts of a key head's gradient, which are rounded before they are summed.

    Args:
        query: [B, s, N, D], this rank's tokens. At least one head per rank; N need not be a multiple.
        key, value: [B, s, Nkv, D], of the same tokens.
        mask: from `paddle_fused.masks`, of the whole sequence; the same on all ranks.
        group: of ``paddle.distributed``; its ranks are in the order of their tokens.
        tokens: the number of tokens of each rank, if they differ.
        attention: of this rank's heads, instead of `paddle_fused.flash_attention`.
        options: as for `paddle_fused.flash_attention`: ``scale``, ``dropout``, ``training``. Each rank draws
            its own random numbers for dropout.

    Returns:
        [B, s, N, D], this rank's tokens of all heads.

    Raises:
        ValueError: fewer heads than ranks, or as `paddle_fused.flash_attention`.
    """
    heads = distribute(query.shape[2], key.shape[2], group.nranks)
    tokens = [query.shape[1]] * group.nranks if tokens is None else list(tokens)
    query = tokens_to_heads(query, heads.queries, tokens, group)
    key, value = (
        heads.repeat(tokens_to_heads(x, heads.keys, tokens, group), group.rank) for x in (key, value)
    )
    out = (attention or paddle_fused.flash_attention)(query, key, value, mask, **options)
    return heads_to_tokens(out, heads.queries, tokens, group)


@dataclass(frozen=True)
class Heads:
    """The heads of each rank, as ranges (first, end).

    Attributes:
        queries: the query heads; the ranges do not overlap.
        keys: the key heads that they read; ranges overlap if several ranks read a head.
        copies: for each rank, by how many equal groups of its query heads each of its key heads is read.
    """

    queries: list[tuple[int, int]]
    keys: list[tuple[int, int]]
    copies: list[tuple[int, ...]]

    def repeat(self, x, rank: int):
        """[B, S, own key heads, D], repeated if they are not read by equally many query heads."""
        copies = self.copies[rank]
        if len(set(copies)) == 1:  # grouped-query attention
            return x
        index = [head for head, count in enumerate(copies) for _ in range(count)]
        return paddle.index_select(x, paddle.to_tensor(index), axis=2)


def distribute(heads: int, key_heads: int, ranks: int) -> Heads:
    """The heads of each rank, with key heads repeated only as far as needed.

    Ranks get whole key heads with their query heads. If there are fewer key heads than ranks, each is divided
    into the smallest number of equal groups of query heads that is enough.
    """
    if heads % key_heads:
        raise ValueError(
            f"{OPERATOR}: query has {heads} heads and key {key_heads}; accepted: a multiple of key's heads."
        )
    if heads < ranks:
        raise ValueError(
            f"{OPERATOR}: query has {heads} heads for {ranks} ranks; accepted: at least one head per rank. "
            "Split the sequence over fewer ranks."
        )
    of_key_head = heads // key_heads
    parts = next(n for n in range(1, of_key_head + 1) if of_key_head % n == 0 and key_heads * n >= ranks)
    ends = [0, *accumulate(shares(key_heads * parts, ranks))]  # in parts of key heads
    size = of_key_head // parts
    queries = [(first * size, end * size) for first, end in pairwise(ends)]
    keys = [(first // parts, -(-end // parts)) for first, end in pairwise(ends)]
    copies = [
        tuple(min(end, (head + 1) * parts) - max(first, head * parts) for head in range(*own))
        for (first, end), own in zip(pairwise(ends), keys, strict=True)
    ]
    return Heads(queries, keys, copies)
