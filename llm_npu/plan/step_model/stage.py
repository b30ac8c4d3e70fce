"""The parts of a model on one rank of a pipeline stage, each as a list of operations."""

from __future__ import annotations

from collections.abc import Iterator

from paddle_fused import registry

from .feed_forward import FeedForward
from .kernels import TRAFFIC, WIDTH
from .operations import Operation, collective

BLOCK = 128  # queries and keys of a block; attention computes whole blocks
DOCUMENTS = 4  # assumed number of documents in a packed sample of the mask "documents"
BACKWARD_ATTENTION = 2.5  # five matmuls instead of two; fused attention recomputes the scores
# Per logit: cast to float32, max, subtract, exp, sum, divide; backward multiply, cast to bfloat16.
LOSS_FORWARD, LOSS_BACKWARD = (38, 7, 2), (14, 2, 6)
ACCUMULATE = 18  # bytes per weight: bfloat16 gradient, its float32 copy, and the sum
ADAM = registry.find("fused_adamw").cost(WIDTH, False, parameters=1).bytes  # per weight
CLIP = 12  # bytes per weight: read the gradient for the norm, then scale it


def causal(length: int) -> float:
    """The share of all query-key pairs for which causal attention computes a score."""
    blocks = max(1, length // BLOCK)
    return (blocks + 1) / (2 * blocks)


class Stage(FeedForward):
    """The sizes on one rank of a stage, and the operations built from them."""

    accumulate = ACCUMULATE

    def attended(self) -> float:
        """The share of all query-key pairs for which attention computes a score."""
        if self.layout.mask == "documents":
            return causal(self.length // DOCUMENTS) / DOCUMENTS
        return causal(self.length)

    def norm(self, name: str, backward: bool = False) -> Operation:
        cost = TRAFFIC["rms_norm", "rms_norm" in self.layout.fused][backward]
        phase = "backward" if backward else "forward"
        return self.vector(name, self.rows * self.hidden, cost, phase=phase)

    def attention(self, backward: bool = False) -> Iterator[Operation]:
        shape, phase = self.shape, "backward" if backward else "forward"
        heads = shape.num_attention_heads // self.tp
        rope = TRAFFIC["rope", "rope" in self.layout.fused][backward]
        if not backward:
            yield self.vector("attention.rope", self.tokens * (self.query + self.key), rope)
        times = BACKWARD_ATTENTION if backward else 1.0
        scores = float(self.batch * heads * self.queries * self.length)
        flops = 4.0 * shape.head_dim * scores * times
        moved = (2 if backward else 1) * self.tokens * 2 * (self.query + self.key) * WIDTH
        shapes = (
            (self.batch, self.length, heads, shape.head_dim),
            (self.batch, self.length, max(shape.num_key_value_heads // self.tp, 1), shape.head_dim),
        )
        if "attention" in self.layout.fused:
            flops *= self.attended()
            yield Operation("attention", "attention", flops, moved, shapes=shapes, phase=phase)
        else:
            for product in range(4 if backward else 2):
                yield self.matmul(
                    f"attention.product.{product}",
                    self.queries,
                    shape.head_dim,
                    self.length,
                    times=self.batch * heads,
                    phase=phase,
                )
            yield self.vector("attention.softmax", scores, TRAFFIC["attention", False][backward], phase=phase)
        if backward:
            yield self.vector("attention.rope", self.tokens * (self.query + self.key), rope, phase="backward")

    def attention_block(self) -> Iterator[Operation]:
        columns = self.columns
        yield from self.into_columns("attention.qkv")
        yield self.matmul("attention.qkv", self.tokens, self.hidden, columns)
        if self.shape.attention_bias:
            yield self.vector("attention.bias", self.tokens * columns, (4, 1))
        yield self.vector("attention.split", self.tokens * columns, (4, 3))
        yield from self.attention()
        yield self.matmul("attention.out", self.tokens, self.query, self.hidden)
        yield from self.out_of_rows("attention.out")

    def attention_block_backward(self) -> Iterator[Operation]:
        columns = self.columns
        yield from self.out_of_rows_backward("attention.out")
        yield from self.linear_backward("attention.out", self.tokens, self.query, self.hidden)
        yield from self.attention(backward=True)
        yield self.vector("attention.split", self.tokens * columns, (4, 3), phase="backward")
        if self.shape.attention_bias:
            yield self.vector("attention.bias", self.tokens * columns, (2, 1), phase="backward")
        yield from self.into_columns_backward("attention.qkv", self.tokens, self.hidden, columns)

    def residual(self, backward: bool = False) -> Operation:
        phase = "backward" if backward else "forward"
        return self.vector("residual", self.rows * self.hidden, (6, 1), phase=phase)

    def layer(self) -> Iterator[Operation]:
        yield self.norm("input_norm")
        yield from self.attention_block()
        yield self.residual()
        yield self.norm("post_attention_norm")
        yield from self.feed_forward()
        yield self.residual()

    def layer_backward(self) -> Iterator[Operation]:
        yield from self.feed_forward_backward()
        yield self.norm("post_attention_norm", backward=True)
        yield self.residual(backward=True)
        yield from self.attention_block_backward()
        yield self.norm("input_norm", backward=True)
        yield self.residual(backward=True)
        yield self.vector("accumulate", self.layer_weights(), (self.accumulate, 2), phase="backward")

    def recomputed(self) -> Iterator[Operation]:
        """The operations that the backward pass of a layer recomputes before it starts."""
        again = {"full": self.layer, "full_attn": self.attention_block, "core_attn": self.attention}
        for operation in again[self.layout.recompute_granularity]():
            yield operation._replace(phase="recompute")

    def layer_weights(self) -> float:
        """Weights of a decoder layer on one rank."""
        return self.shape.layer_parameters / self.tp

    def embedding(self) -> Iterator[Operation]:
        size = self.tokens * self.hidden
        yield self.vector("embedding", size, (4, 1))
        if self.tp > 1:
            yield self.collective("embedding", "all_reduce", beside=False)
        yield from self.out_of_rows_backward("embedding")
        table = self.vocabulary * self.hidden
        yield self.vector("embedding", size, (6, 1), phase="backward")
        yield self.vector("embedding.accumulate", table, (WIDTH + self.accumulate, 3), phase="backward")

    def head(self) -> Iterator[Operation]:
        logits, table = self.tokens * self.vocabulary, self.vocabulary * self.hidden
        yield self.norm("final_norm")
        yield from self.into_columns("lm_head")
        yield self.matmul("lm_head", self.tokens, self.hidden, self.vocabulary)
        yield self.vector("loss", logits, LOSS_FORWARD, dtype="float32")
        if not self.layout.has_logits(self.shape):
            yield self.matmul("lm_head", self.tokens, self.hidden, self.vocabulary, phase="recompute")
        yield self.vector("loss", logits, LOSS_BACKWARD, dtype="float32", phase="backward")
        yield from self.into_columns_backward("lm_head", self.tokens, self.hidden, self.vocabulary)
        yield self.norm("final_norm", backward=True)
        yield self.vector("lm_head.accumulate", table, (self.accumulate, 2), phase="backward")

    def owned(self, stage: int) -> float:
        """Weights of the stage whose optimizer states one rank holds."""
        return self.weights(stage) / self.layout.sharding_degree

    def weights(self, stage: int) -> float:
        """Weights of the stage on one rank."""
        stages, tables = self.layout.pipeline_parallel_degree, 0
        if stages == 1:
            tables = 1 if self.shape.tie_word_embeddings else 2
        elif stage in (0, stages - 1):
            tables = 1
        layers = self.layout.stage_layers(self.shape)
        dense = self.shape.dense_of(layers, stage)
        total = (layers[stage] - dense) * self.layer_weights()
        if dense:
            total += dense * self.shape.dense.layer_parameters / self.tp
        return total + tables * self.vocabulary * self.hidden

    def shard(self, what: str, payload: float, phase: str, overlaps: str = "") -> Operation:
        group = "sharding" if self.layout.sharding else "dp"
        return collective("sharding", what, payload, group, self.layout.replicas, phase, overlaps=overlaps)
