"""The parts of a model on one rank of a pipeline stage that differ from this trainer."""

from __future__ import annotations

from collections.abc import Iterator

from llm_npu.plan.step_model.operations import Operation
from llm_npu.plan.step_model.stage import BLOCK, WIDTH

from .feed_forward import FeedForward

# Merging two attention results, as in MindSpeed's forward_update: each scale is expanded to every element,
# transposed and multiplied in float32, followed by the sum and a cast to bfloat16. Gradients are added. With
# a causal mask, parts after half of the queries only affect the other half.
MERGE, MERGE_GRADIENTS, MERGED = (62, 9), (6, 1), 0.75
PRODUCTS = {"attention.qkv": 3, "mlp.up": 2}  # matmuls of the same input, in a program that separates them


class ProgramStage(FeedForward):
    """A stage of ``software``."""

    @property
    def overlapped(self) -> bool:
        return super().overlapped or self.software.interleaves > 1

    def attended(self) -> float:
        window, length = self.shape.sliding_window, self.length
        if self.layout.mask != "band" or not 0 < (self.shape.sliding_window or 0) < length:
            return super().attended()
        return min(super().attended(), (window * (length - window / 2) + BLOCK * length / 2) / length**2)

    def collective(self, name: str, what: str, backward: bool = False, beside: bool = True) -> Operation:
        operation = super().collective(name, what, backward, beside)
        if backward and beside and self.software.asynchronous:
            return operation._replace(overlaps="matmul")
        return operation

    def into_columns_backward(self, name: str, m: int, k: int, n: int, **fields) -> Iterator[Operation]:
        """The matmuls of the layer; the repeated gather overlaps the first one."""
        sequence = self.layout.sequence_parallel
        if self.tp > 1 and sequence and self.software.recompute_all_gather:
            yield self.collective(f"{name}.again", "all_gather", True)
        yield from self.linear_backward(name, m, k, n, **fields)
        if self.tp > 1:
            scattered = sequence and (self.software.scatters or name != "lm_head")
            sums = PRODUCTS.get(name, 1) if self.software.separate_products else 1
            for _ in range(sums):
                yield self.collective(name, "reduce_scatter" if scattered else "all_reduce", True)

    def fused_attention(self, attention: Operation) -> Iterator[Operation]:
        yield attention

    def attention(self, backward: bool = False) -> Iterator[Operation]:
        yield from super().attention(backward)
        if self.context > 1:
            yield from self.ring(backward)

    def ring(self, backward: bool) -> Iterator[Operation]:
        """Keys and values (in the backward pass also their gradients) circulate among the context-parallel
        ranks while attention computes. Each partial result is merged with the previous ones."""
        phase, elements = "backward" if backward else "forward", MERGED * self.tokens * self.query
        if backward:
            elements += 2 * self.tokens * self.key
        cost = MERGE_GRADIENTS if backward else MERGE
        yield self.vector("attention.merge", elements, cost, phase=phase, times=self.context - 1)
        yield Operation(
            "attention.ring",
            "collective",
            phase=phase,
            times=(self.context - 1) * (2 if backward else 1),
            collective="send",
            payload=2 * self.tokens * self.key * WIDTH,
            group="cp",
            group_size=self.context,
            overlaps="attention",
        )

    def recomputed(self) -> Iterator[Operation]:
        if self.layout.recompute_granularity == "activation":
            operations = [operation._replace(phase="recompute") for operation in self.activation()]
        else:
            operations = list(super().recomputed())
        if self.software.graph and operations[-1].name == "residual":
            # A compiler removes operations that no gradient reads: the layer's output and its last matmul.
            last = max(index for index, operation in enumerate(operations) if operation.kind == "matmul")
            operations = operations[:last]
        yield from operations

    def embedding(self) -> Iterator[Operation]:
        scatters = self.layout.sequence_parallel and self.software.scatters
        for operation in super().embedding():
            if operation.collective == "all_reduce" and scatters:
                operation = operation._replace(name="embedding.reduce_scatter", collective="reduce_scatter")
            yield operation

    def owned(self, stage: int) -> float:
        """Weights of the stage whose states are on one rank; fewer ranks share the states of experts."""
        shared, layers = self.layout.sharding_degree, self.layout.stage_layers(self.shape)
        mixed = layers[stage] - self.shape.dense_of(layers, stage)
        experts = mixed * self.shape.expert_parameters / self.ep / self.tp
        return (self.weights(stage) - experts) / shared + experts / max(shared // self.ep, 1)
