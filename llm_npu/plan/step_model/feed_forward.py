"""The feed-forward layer of a decoder layer, dense or a mixture of experts, as operations of one rank."""

from __future__ import annotations

from collections.abc import Iterator

from .kernels import TRAFFIC, WIDTH, Kernels
from .operations import Operation

# Megatron core until 0.7 picks tokens by torch.gather and torch.scatter_add with an int64 index for every
# element: those of the rank's experts, in the order of the experts, back, and into the sum of all tokens.
PICK = (4 * (8 + 2 * WIDTH), 4)


class FeedForward(Kernels):
    """The operations of a feed-forward layer."""

    def experts(self) -> list[tuple[str, int, int, int]]:
        """Name, rows, inner columns and number of the feed-forward layers."""
        shape = self.shape
        if not shape.num_experts:
            return [("mlp", self.tokens, self.inner, 1)]
        even = self.tokens * self.ep * shape.experts_per_token / shape.num_experts
        rows = max(1, round(even * self.software.capacity))
        found = [("experts", rows, self.inner, shape.num_experts // self.ep)]
        if shared := shape.shared_expert_intermediate_size // self.tp:
            found.append(("shared_expert", self.tokens, shared, 1))
        return found

    @property
    def gathers_all(self) -> bool:
        """Whether every rank gets all tokens and picks those of its experts."""
        return bool(self.shape.num_experts) and self.software.dispatcher == "allgather"

    def routing(self, phase: str) -> Iterator[Operation]:
        """The operations of a mixture of experts besides its feed-forward layers."""
        shape = self.shape
        if not shape.num_experts:
            return
        routed = self.tokens * shape.experts_per_token * self.hidden
        yield self.matmul("experts.router", self.rows, self.hidden, shape.num_experts, phase=phase)
        if self.gathers_all:
            yield self.vector("experts.permute", routed, PICK, phase=phase, by_element=True)
            yield self.vector("experts.scale", routed, (6, 1), phase=phase)
        else:
            moves = (4, 2) if "moe" in self.layout.fused else (12, 2 * shape.num_experts)
            yield self.vector("experts.permute", 2 * routed, moves, phase=phase)
        if self.ep > 1:  # tokens to the experts, and results back
            sent = self.rows * shape.experts_per_token * self.hidden * WIDTH
            exchange = ("all_to_all", 2, sent)
            if self.gathers_all:  # all-gather and reduce-scatter, which take the same time
                exchange = ("all_gather", 2, self.spread * self.ep)
            collective, times, payload = exchange
            yield Operation(
                "experts.exchange",
                "collective",
                phase=phase,
                times=times,
                collective=collective,
                payload=payload,
                group="ep",
                group_size=self.ep,
            )

    def swiglu(self, name: str, rows: int, inner: int, count: int, backward: bool = False) -> Operation:
        cost = TRAFFIC["swiglu", "swiglu" in self.layout.fused][backward]
        phase = "backward" if backward else "forward"
        return self.vector(f"{name}.swiglu", rows * inner, cost, phase=phase, times=count)

    def feed_forward(self) -> Iterator[Operation]:
        yield from self.routing("forward")
        yield from self.into_columns("mlp.up", beside=not self.gathers_all)
        for name, rows, inner, count in self.experts():
            yield self.matmul(f"{name}.up", rows, self.hidden, 2 * inner, times=count)
            yield self.swiglu(name, rows, inner, count)
            yield self.matmul(f"{name}.down", rows, inner, self.hidden, times=count)
        yield from self.out_of_rows("mlp.down", beside=not self.gathers_all)

    def feed_forward_backward(self) -> Iterator[Operation]:
        yield from self.out_of_rows_backward("mlp.down", beside=not self.gathers_all)
        first, *others = self.experts()
        for name, rows, inner, count in (*others, first):
            yield from self.linear_backward(f"{name}.down", rows, inner, self.hidden, times=count)
            yield self.swiglu(name, rows, inner, count, backward=True)
            if name == first[0]:
                up = (rows, self.hidden, 2 * inner)
                yield from self.into_columns_backward(
                    f"{name}.up", *up, linear=not self.gathers_all, times=count
                )
            else:
                yield from self.linear_backward(f"{name}.up", rows, self.hidden, 2 * inner, times=count)
        yield from self.routing("backward")

    def activation(self) -> Iterator[Operation]:
        """The activation of the feed-forward layers alone."""
        for name, rows, inner, count in self.experts():
            yield self.swiglu(name, rows, inner, count)
