"""The feed-forward layer of a decoder layer, dense or a mixture of experts, as operations of one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .kernels import TRAFFIC, WIDTH, Kernels
from .operations import Operation

# Megatron core until 0.7 picks tokens by torch.gather and torch.scatter_add with an int64 index for every
# element: those of the rank's experts, in the order of the experts, back, and into the sum of all tokens.
PICK = (4 * (8 + 2 * WIDTH), 4)

EXPERTS = "experts"


class Layer(NamedTuple):
    """``groups`` layers in one kernel, of ``inner`` columns, for ``rows`` tokens each; ``times`` kernels."""

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
        """The feed-forward layers of a decoder layer: one, or the experts and a shared one."""
        shape = self.shape
        if not shape.num_experts:
            return [Layer("mlp", self.tokens, self.inner)]
        even = self.tokens * self.ep * shape.experts_per_token / shape.num_experts
        rows, number = max(1, round(even * self.software.capacity)), shape.num_experts // self.ep
        grouped = self.software.grouped or "moe" in self.layout.fused
        many = {"groups": number} if grouped else {"times": number}
        found = [Layer(EXPERTS, rows, self.inner, **many)]
        if shared := shape.shared_expert_intermediate_size // self.tp:
            found.append(Layer("shared_expert", self.tokens, shared))
        return found

    @property
    def dispatches(self) -> bool:
        """Whether a dispatcher, not the experts' layers, moves tokens between tensor-parallel ranks."""
        return bool(self.shape.num_experts and self.software.dispatcher)

    def routing(self, phase: str) -> Iterator[Operation]:
        """The operations of a mixture of experts besides its feed-forward layers."""
        shape = self.shape
        if not shape.num_experts:
            return
        routed = self.tokens * shape.experts_per_token * self.hidden
        yield self.matmul("experts.router", self.rows, self.hidden, shape.num_experts, phase=phase)
        if self.software.dispatcher == "allgather":
            yield self.vector("experts.permute", routed, PICK, phase=phase, by_element=True)
            yield self.vector("experts.scale", routed, (6, 1), phase=phase)
        else:
            # Apart, a program gathers and adds the rows of one expert after the other.
            kernels = 8 if self.software.grouped else 2 * shape.num_experts
            moves = (4, 2) if "moe" in self.layout.fused else (12, kernels)
            if self.software.dispatcher:
                routed /= self.tp  # every rank permutes a part of the hidden size
            yield self.vector("experts.permute", 2 * routed, moves, phase=phase)
        yield from self.exchanges(phase)

    def exchanges(self, phase: str) -> Iterator[Operation]:
        """The collectives of a mixture: tokens to the ranks of their experts, and results back."""
        copies, everyone = self.shape.experts_per_token, self.software.dispatcher == "allgather"
        if self.dispatches and self.tp > 1 and self.layout.sequence_parallel:
            one = self.collective("experts", "all_gather", phase == "backward", beside=False)
            moved = [("all_gather", 1), ("reduce_scatter", 1)]
            if not everyone:  # from parts of the sequence to parts of the hidden size, and back
                moved = [(what, copies) for what, _ in moved] + 2 * [("all_to_all", 1)]
            for what, many in moved:
                yield one._replace(name=f"experts.{what}", collective=what, payload=many * self.spread)
        if self.ep > 1:
            sent = self.spread * self.ep if everyone else self.rows * copies * self.hidden * WIDTH
            yield Operation(
                "experts.exchange",
                "collective",
                phase=phase,
                times=2,
                collective="all_gather" if everyone else "all_to_all",  # a reduce-scatter takes as long
                payload=sent,
                group="ep",
                group_size=self.ep,
            )

    def swiglu(self, layer: Layer, backward: bool = False) -> Operation:
        cost = TRAFFIC["swiglu", "swiglu" in self.layout.fused][backward]
        phase, elements = "backward" if backward else "forward", layer.groups * layer.rows * layer.inner
        return self.vector(f"{layer.name}.swiglu", elements, cost, phase=phase, times=layer.times)

    def feed_forward(self) -> Iterator[Operation]:
        yield from self.routing("forward")
        if not self.dispatches:
            yield from self.into_columns("mlp.up")
        for layer in self.layers():
            name, rows, inner, many = layer.name, layer.rows, layer.inner, layer.many
            apart = self.dispatches and name != EXPERTS
            if apart:
                yield from self.into_columns(f"{name}.up")
            yield self.matmul(f"{name}.up", rows, self.hidden, 2 * inner, **many)
            yield self.swiglu(layer)
            yield self.matmul(f"{name}.down", rows, inner, self.hidden, **many)
            if apart:
                yield from self.out_of_rows(f"{name}.down")
        if not self.dispatches:
            yield from self.out_of_rows("mlp.down")

    def feed_forward_backward(self) -> Iterator[Operation]:
        if not self.dispatches:
            yield from self.out_of_rows_backward("mlp.down")
        first, *others = self.layers()
        for layer in (*others, first):
            name, rows, inner, many = layer.name, layer.rows, layer.inner, layer.many
            apart = self.dispatches and name != EXPERTS
            if apart:
                yield from self.out_of_rows_backward(f"{name}.down")
            yield from self.linear_backward(f"{name}.down", rows, inner, self.hidden, **many)
            yield self.swiglu(layer, backward=True)
            up = (f"{name}.up", rows, self.hidden, 2 * inner)
            if apart or (layer is first and not self.dispatches):
                yield from self.into_columns_backward(*up, **many)
            else:
                yield from self.linear_backward(*up, **many)
        yield from self.routing("backward")

    def activation(self) -> Iterator[Operation]:
        """The activation of the feed-forward layers alone."""
        for layer in self.layers():
            yield self.swiglu(layer)
