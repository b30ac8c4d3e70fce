"""The feed-forward layer of a decoder layer, dense or a mixture of experts, as operations of one rank."""

from __future__ import annotations

from collections.abc import Iterator

from .kernels import TRAFFIC, WIDTH, Kernels
from .operations import Operation


class FeedForward(Kernels):
    """The operations of a feed-forward layer."""

    def experts(self) -> list[tuple[str, int, int, int]]:
        """Name, rows, inner columns and number of the feed-forward layers."""
        shape = self.shape
        if not shape.num_experts:
            return [("mlp", self.tokens, self.inner, 1)]
        rows = max(1, self.tokens * self.ep * shape.experts_per_token // shape.num_experts)
        found = [("experts", rows, self.inner, shape.num_experts // self.ep)]
        if shared := shape.shared_expert_intermediate_size // self.tp:
            found.append(("shared_expert", self.tokens, shared, 1))
        return found

    def routing(self, phase: str) -> Iterator[Operation]:
        """The operations of a mixture of experts besides its feed-forward layers."""
        if self.shape.num_experts:
            routed = self.tokens * self.shape.experts_per_token * self.hidden
            moves = (4, 2) if "moe" in self.layout.fused else (12, 2 * self.shape.num_experts)
            yield self.vector("experts.permute", 2 * routed, moves, phase=phase)
            yield self.matmul("experts.router", self.tokens, self.hidden, self.shape.num_experts, phase=phase)
            if self.ep > 1:  # tokens to the experts, and results back
                yield Operation(
                    "experts.exchange",
                    "collective",
                    phase=phase,
                    times=2,
                    collective="all_to_all",
                    payload=self.rows * self.shape.experts_per_token * self.hidden * WIDTH,
                    group="ep",
                    group_size=self.ep,
                )

    def swiglu(self, name: str, rows: int, inner: int, count: int, backward: bool = False) -> Operation:
        cost = TRAFFIC["swiglu", "swiglu" in self.layout.fused][backward]
        phase = "backward" if backward else "forward"
        return self.vector(f"{name}.swiglu", rows * inner, cost, phase=phase, times=count)

    def feed_forward(self) -> Iterator[Operation]:
        yield from self.routing("forward")
        yield from self.into_columns("mlp.up")
        for name, rows, inner, count in self.experts():
            yield self.matmul(f"{name}.up", rows, self.hidden, 2 * inner, times=count)
            yield self.swiglu(name, rows, inner, count)
            yield self.matmul(f"{name}.down", rows, inner, self.hidden, times=count)
        yield from self.out_of_rows("mlp.down")

    def feed_forward_backward(self) -> Iterator[Operation]:
        yield from self.out_of_rows_backward("mlp.down")
        first, *others = self.experts()
        for name, rows, inner, count in (*others, first):
            yield from self.linear_backward(f"{name}.down", rows, inner, self.hidden, times=count)
            yield self.swiglu(name, rows, inner, count, backward=True)
            if name == first[0]:
                up = (rows, self.hidden, 2 * inner)
                yield from self.into_columns_backward(f"{name}.up", *up, times=count)
            else:
                yield from self.linear_backward(f"{name}.up", rows, self.hidden, 2 * inner, times=count)
        yield from self.routing("backward")

    def activation(self) -> Iterator[Operation]:
        """The activation of the feed-forward layers alone."""
        for name, rows, inner, count in self.experts():
            yield self.swiglu(name, rows, inner, count)
