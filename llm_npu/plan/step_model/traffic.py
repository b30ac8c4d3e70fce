"""The time of a collective, by the number of cards and servers and by their interconnect.

An all-gather or reduce-scatter of V bytes among n cards; an all-reduce takes twice as long:

    full mesh     V / (n B)                     every card sends its part to all others at once
    switch, ring  (n - 1) (V / (n B) + a)       with B bytes/s per card, and latency a
    halving       (n - 1) / n V / B + log2(n) a the same bytes in fewer steps; n a power of two

The collective runs first within each server, then between the servers of a pod on each card's share, then
between pods on the share of that share. The uplinks of a pod may be oversubscribed.
"""

from __future__ import annotations

import math

from llm_npu.core.cards import Card, Link

from .operations import Operation

# A reduce-scatter and an all-gather or gather; or a scatter and an all-gather.
TWICE = ("all_reduce", "reduce", "broadcast")


def half(payload: float, cards: int, link: Link) -> float:
    """Seconds of a reduce-scatter or an all-gather of ``payload`` bytes among ``cards`` cards on ``link``."""
    if cards == 1:
        return 0.0
    bandwidth = link.bandwidth * link.efficiency
    if link.topology == "full_mesh":
        return payload / cards / bandwidth + link.latency
    moved = payload * (cards - 1) / cards / bandwidth
    steps = math.log2(cards) if cards & (cards - 1) == 0 else cards - 1
    return moved + steps * link.latency


def in_server(size: int, stride: int, link: Link) -> int:
    """How many of a group's ``size`` ranks, ``stride`` apart, are in one server."""
    if link.cards is None:
        return size
    return max(1, min(size, link.cards // stride))


def seconds(operation: Operation, card: Card, stride: int = 1) -> float:
    """Seconds of one run of the collective ``operation``, with its group's ranks ``stride`` apart."""
    size, payload, link = operation.group_size, operation.payload, card.within_server
    if size == 1:
        return 0.0
    near, between = in_server(size, stride, link), card.between_servers
    together = max(near, min(size, between.pod // stride)) if between.oversubscription > 1 else size
    if operation.collective == "send":
        # The slowest hop between neighbouring stages limits the pipeline.
        links = ([link] if near > 1 else []) + ([between] if near < size else [])
        links += [between.uplink] if size > together else []
        return max(payload / (used.bandwidth * used.efficiency) + used.latency for used in links)
    once = half(payload, near, link) + half(payload / near, math.ceil(together / near), between)
    once += half(payload / together, math.ceil(size / together), between.uplink)
    return (2 if operation.collective in TWICE else 1) * once
