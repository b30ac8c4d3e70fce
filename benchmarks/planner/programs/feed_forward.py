"""A mixture of experts as other programs run it: how tokens reach the ranks of their experts."""

from __future__ import annotations

from collections.abc import Iterator

from llm_npu.plan.step_model.operations import Operation
from llm_npu.plan.step_model.stage import EXPERTS, WIDTH, Layer, Stage

from .layout import PublishedLayout
from .software import Software

# Until 0.7, Megatron core uses torch.gather and torch.scatter_add with an int64 index for every element to
# select the tokens of the rank's experts, in the order of the experts, to restore them, and to add them up.
PICK = (4 * (8 + 2 * WIDTH), 4)
GATHER = "gather"  # the kind of such a kernel


class FeedForward(Stage):
    """The feed-forward layers of a stage of ``software``."""

    def __init__(self, shape, layout: PublishedLayout, software: Software):
        super().__init__(shape, layout)
        self.software, self.accumulate = software, software.accumulate

    def experts(self) -> Layer:
        number = self.shape.num_experts
        even = self.tokens * self.ep * self.shape.experts_per_token / number
        rows = max(1, round(even * self.software.capacity))
        grouped = self.software.grouped or "moe" in self.layout.fused
        return Layer(EXPERTS, rows, self.inner, **{"groups" if grouped else "times": number // self.ep})

    @property
    def dispatches(self) -> bool:
        """Whether a dispatcher (not the experts' layers) moves tokens between tensor-parallel ranks."""
        return bool(self.shape.num_experts and self.software.dispatcher)

    def routing(self, phase: str) -> Iterator[Operation]:
        """The operations of a mixture of experts besides its feed-forward layers."""
        shape = self.shape
        if not shape.num_experts:
            return
        routed = self.tokens * shape.experts_per_token * self.hidden
        yield self.matmul("experts.router", self.rows, self.hidden, shape.num_experts, phase=phase)
        if self.software.dispatcher == "allgather":
            yield self.vector("experts.permute", routed, PICK, phase=phase)._replace(kind=GATHER)
            yield self.vector("experts.scale", routed, (6, 1), phase=phase)
        else:
            # With separate experts, a program gathers and adds the rows of one expert after the other.
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
            operation = self.collective("experts", "all_gather", phase == "backward", beside=False)
            moved = [("all_gather", 1), ("reduce_scatter", 1)]
            if not everyone:  # from shards of the sequence to shards of the hidden size, and back
                moved = [(what, copies) for what, _ in moved] + 2 * [("all_to_all", 1)]
            for what, many in moved:
                yield operation._replace(name=f"experts.{what}", collective=what, payload=many * self.spread)
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

    def feed_forward(self) -> Iterator[Operation]:
        if not self.dispatches:
            yield from super().feed_forward()
            return
        yield from self.routing("forward")
        for layer in self.layers():
            name, rows, inner, many = layer.name, layer.rows, layer.inner, layer.many
            if name != EXPERTS:
                yield from self.into_columns(f"{name}.up")
            yield self.matmul(f"{name}.up", rows, self.hidden, 2 * inner, **many)
            yield self.swiglu(layer)
            yield self.matmul(f"{name}.down", rows, inner, self.hidden, **many)
            if name != EXPERTS:
                yield from self.out_of_rows(f"{name}.down")

    def feed_forward_backward(self) -> Iterator[Operation]:
        if not self.dispatches:
            yield from super().feed_forward_backward()
            return
        first, *others = self.layers()
        for layer in (*others, first):
            name, rows, inner, many = layer.name, layer.rows, layer.inner, layer.many
            apart = name != EXPERTS
            if apart:
                yield from self.out_of_rows_backward(f"{name}.down")
            yield from self.linear_backward(f"{name}.down", rows, inner, self.hidden, **many)
            yield self.swiglu(layer, backward=True)
            into = self.into_columns_backward if apart else self.linear_backward
            yield from into(f"{name}.up", rows, self.hidden, 2 * inner, **many)
        yield from self.routing("backward")

    def activation(self) -> Iterator[Operation]:
        """The activation of the feed-forward layers alone."""
        for layer in self.layers():
            yield self.swiglu(layer)
