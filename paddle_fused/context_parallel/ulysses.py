"""Ulysses: attention of a sequence that is split over ranks, each rank with all tokens of some heads.

    out = tokens(attention(heads(Q), heads(K), heads(V)))

Every rank sends its tokens of the other ranks' heads, and receives the other ranks' tokens of its own heads.
Attention is computed as on one rank, with the same operators, masks and sums.

Source: DeepSpeed Ulysses, arXiv 2309.14509. Legend: B batch, S tokens of the whole sequence, s tokens of this
rank, N and Nkv heads of query and of key and value, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import paddle

import paddle_fused

from .exchange import heads_to_tokens, tokens_to_heads
from .heads import Heads, distribute


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
    """`paddle_fused.flash_attention` of a sequence that is split contiguously over the ranks. Collective.

    With at least one key head per rank, results and gradients are bit-identical to one rank. With fewer,
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
        _repeated(tokens_to_heads(x, heads.keys, tokens, group), heads, group.rank) for x in (key, value)
    )
    out = (attention or paddle_fused.flash_attention)(query, key, value, mask, **options)
    return heads_to_tokens(out, heads.queries, tokens, group)


def _repeated(x, heads: Heads, rank: int):
    """[B, S, own key heads, D], repeated if they are read by different numbers of query heads."""
    if not heads.repeats(rank):  # grouped-query attention
        return x
    index = [head for head, count in enumerate(heads.copies[rank]) for _ in range(count)]
    return paddle.index_select(x, paddle.to_tensor(index), axis=2)
