"""Ring attention over some ranks, and a share of the heads on each of the others.

The sequence is split over the ranks of the ring in zigzag order, and each of these parts over the ranks of
``heads_group`` in contiguous parts. Ulysses needs one head per rank and its exchange is exposed, but moves
fewer bytes than a ring; so the ranks of one server share heads, and servers form the ring.

Source: USP, arXiv 2405.07719.
"""

from __future__ import annotations

from functools import partial

from .ring import ring_attention
from .ulysses import ulysses_attention


def hybrid_attention(query, key, value, mask=None, *, ring_group, heads_group, **options):
    """`ring.ring_attention` with the heads shared by the ranks of ``heads_group``. Collective.

    Args:
        query, key, value: [B, s, N, D], [B, s, Nkv, D] and [B, s, Nkv, Dv], the tokens of this rank: its
            contiguous share, in ``heads_group``, of the zigzag part of its rank in ``ring_group``.
        mask: of the whole sequence, as for the ring.
        ring_group, heads_group: each rank of a ring is in a different heads group, and vice versa.
        options: as for the ring: ``backward_group``, ``scale``.

    Returns:
        [B, s, N, Dv], this rank's tokens of all heads.

    Raises:
        ValueError: fewer heads than ranks in ``heads_group``, or as `ring.ring_attention`.
    """
    attention = partial(ring_attention, group=ring_group)
    return ulysses_attention(query, key, value, mask, group=heads_group, attention=attention, **options)
