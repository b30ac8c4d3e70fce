"""The feed-forward layer of a decoder layer, dense or a mixture of experts, as operations of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .kernels import TRAFFIC, Kernels
from .operations import Operation

EXPERTS = "experts"


class Layer(NamedTuple):
    """``times`` kernels, each with ``groups`` layers of ``inner`` columns for ``rows`` tokens per layer."""

    name: str
    rows: int
    inner: int
    groups: int = 1
    times: int = 1

    @property
    def many(self) -> dict[str, int]:
        return {"groups": self.groups, "times": self.times}


class FeedForward(Kernels):
    """The operations of a feed-forward layer."""

    def layers(self) -> list[Layer]:
        """The feed-forward layers of a decoder layer: a dense one, or the experts and a shared expert."""
        if not self.shape.num_experts:
            return [Layer("mlp", self.tokens, self.inner)]
        layers = [self.experts()]
        if shared := self.shape.shared_expert_intermediate_size // self.tp:
            layers.append(Layer("shared_expert", self.tokens, shared))
        return layers

    def experts(self) -> Layer:
        """All experts, each with an equal share of the tokens."""
        number = self.shape.num_experts
        rows = max(1, round(self.tokens * self.shape.experts_per_token / number))
        many = {"groups" if "moe" in self.layout.fused else "times": number}
        return Layer(EXPERTS, rows, self.inner, **many)

    def routing(self, phase: str) -> Iterator[Operation]:
        """The operations of a mixture of experts besides its feed-forward layers."""
        number = self.shape.num_experts
        if not number:
            return
        yield self.matmul("experts.router", self.rows, self.hidden, number, phase=phase)
        # The composed operators gather and add the rows of one expert after the other.
        moves = (4, 2) if "moe" in self.layout.fused else (12, 2 * number)
        routed = self.tokens * self.shape.experts_per_token * self.hidden
        yield self.vector("experts.permute", 2 * routed, moves, phase=phase)

    def swiglu(self, layer: Layer, backward: bool = False) -> Operation:
        cost = TRAFFIC["swiglu", "swiglu" in self.layout.fused][backward]
        phase, elements = "backward" if backward else "forward", layer.groups * layer.rows * layer.inner
        return self.vector(f"{layer.name}.swiglu", elements, cost, phase=phase, times=layer.times)

    def feed_forward(self) -> Iterator[Operation]:
        yield from self.routing("forward")
        yield from self.into_columns("mlp.up")
        for layer in self.layers():
            name, rows, inner, many = layer.name, layer.rows, layer.inner, layer.many
            yield self.matmul(f"{name}.up", rows, self.hidden, 2 * inner, **many)
            yield self.swiglu(layer)
            yield self.matmul(f"{name}.down", rows, inner, self.hidden, **many)
        yield from self.out_of_rows("mlp.down")

    def feed_forward_backward(self) -> Iterator[Operation]:
        yield from self.out_of_rows_backward("mlp.down")
        first, *others = self.layers()
        for layer in (*others, first):
            name, rows, inner, many = layer.name, layer.rows, layer.inner, layer.many
            yield from self.linear_backward(f"{name}.down", rows, inner, self.hidden, **many)
            yield self.swiglu(layer, backward=True)
            into = self.into_columns_backward if layer is first else self.linear_backward
            yield from into(f"{name}.up", rows, self.hidden, 2 * inner, **many)
        yield from self.routing("backward")
