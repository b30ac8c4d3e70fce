"""A limit on the tokens of an expert (``--moe_expert_capacity_factor``).

    capacity = ceil(factor * T * K / E)

An expert computes at most ``capacity`` of the T tokens of a micro batch on this rank. The choices with the
lowest probabilities are dropped, as by default in Megatron (``--moe-token-drop-policy probs``) and in
DeepSpeed: they contribute 0 to the token, so that the residual alone remains if all its choices are dropped.
The probabilities of the other choices do not change. Router losses count all choices.

T tokens, E experts, K experts per token.
"""

from __future__ import annotations

import math

import paddle

from llm_npu.surgery.registry import find
from paddle_fused import paddle_release

CAPACITY = "_expert_capacity"  # attribute of blocks


class Capacity:
    """The limit for all MoE layers of a model, and the choices that it dropped."""

    def __init__(self, factor: float):
        self.factor = factor
        self._dropped: list[paddle.Tensor] = []
        self._choices = 0

    def limit(self, model) -> None:
        """Limit the experts of every MoE layer of ``model``, which must be fused."""
        for block in find("moe").sites(model).values():
            block.__dict__[CAPACITY] = self

    @paddle.no_grad()
    def kept(self, probs, indices, experts: int):
        """``indices`` [T, K] of ``experts`` experts, E for dropped choices."""
        tokens, _ = indices.shape
        capacity = math.ceil(self.factor * indices.size / experts)
        self._choices += indices.size
        if capacity >= tokens:  # a token chooses an expert once
            return indices
        dropped = _place_in_expert(probs, indices, experts) >= capacity
        self._dropped.append(dropped.astype("int64").sum())
        return paddle.where(dropped, paddle.full_like(indices, experts), indices)

    def take_share(self) -> float:
        """The share of choices dropped since the last call; NaN without choices."""
        dropped, choices = sum(map(int, self._dropped)), self._choices
        self._dropped, self._choices = [], 0
        return dropped / choices if choices else float("nan")


def _place_in_expert(probs, indices, experts: int):
    """The place of every choice among those of its expert, the most probable first, [T, K]."""
    chosen = indices.flatten().astype("int64")
    order = paddle.argsort(-probs.flatten().astype("float32"), stable=True)
    order = order[paddle.argsort(chosen[order], stable=True)]
    counts = paddle_release.counts_of(indices, experts)
    first = paddle.cumsum(counts) - counts
    places = paddle.arange(len(order)) - first[chosen[order]]
    return places[paddle.argsort(order)].reshape(indices.shape)
