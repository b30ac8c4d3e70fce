"""The parts of a model on one rank of a pipeline stage, each as a list of operations.

Bytes count every read and write of a tensor once per kernel; for tensors split by tensor parallelism, only
the rank's part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from paddle_fused import registry
from paddle_fused.context_parallel.heads import distribute

from ..layout import Layout
from ..shape import ModelShape
from .operations import Operation, collective

WIDTH, SINGLE = 2, 4  # bytes of bfloat16 and float32
EXPERTS = "experts"
BLOCK = 128  # queries and keys of a block; attention computes whole blocks
DOCUMENTS = 4  # assumed number of documents in a packed sample of the mask "documents"
BACKWARD_ATTENTION = 2.5  # five matmuls instead of two; fused attention recomputes the scores
# Per logit: cast to float32, max, subtract, exp, sum, divide; backward multiply, cast to bfloat16.
LOSS_FORWARD, LOSS_BACKWARD = (38, 7, 2), (14, 2, 6)
ACCUMULATE = 18  # bytes per weight: bfloat16 gradient, its float32 copy, and the sum
ADAM = registry.find("fused_adamw").cost(WIDTH, False, parameters=1).bytes  # per weight
CLIP = 12  # bytes per weight: read the gradient for the norm, then scale it


def _traffic(operator: str, **element: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """A row of TRAFFIC: one kernel, with the operator's registered bytes."""
    cost = registry.find(operator).cost
    forward, both = (cost(WIDTH, backward, **element).bytes for backward in (False, True))
    return (forward, 1), (both - forward, 1)


# A ring merges each block in float32: bytes per query, then per key, and kernels. In the backward pass, the
# block's operands are copied, and its gradients are added.
MERGE, MERGE_GRADIENTS = ((50, 0), 26), ((46, 34), 24)

# Bytes read and written per element, and the number of kernels; forward and backward.
TRAFFIC = {
    "rms_norm": _traffic("rms_norm", tokens=1, hidden=1),
    "swiglu": _traffic("swiglu", tokens=1, hidden=1),  # per element of I
    "rope": _traffic("rotary_mul", tokens=1, heads=1, head_dim=1),
}


def causal(length: int) -> float:
    """The share of all query-key pairs for which causal attention computes a score."""
    blocks = max(1, length // BLOCK)
    return (blocks + 1) / (2 * blocks)


class Layer(NamedTuple):
    """One kernel of ``groups`` layers with ``inner`` columns, for ``rows`` tokens per layer."""

    name: str
    rows: int
    inner: int
    groups: int = 1


def matmul(name: str, m: int, k: int, n: int, groups: int = 1, **fields) -> Operation:
    """``groups`` products of (m, k) and (k, n) in one kernel."""
    moved = groups * (m * k + k * n + m * n) * WIDTH
    shapes = ((groups * m, k), (k, n))
    return Operation(name, "matmul", flops=2.0 * groups * m * k * n, bytes=moved, shapes=shapes, **fields)


class Stage:
    """The sizes on one rank of a stage, and the operations built from them."""

    rope = TRAFFIC["rope"]

    def __init__(self, shape: ModelShape, layout: Layout):
        tp = layout.tensor_parallel_degree
        self.shape, self.layout, self.tp = shape, layout, tp
        self.batch, self.length = layout.per_device_train_batch_size, layout.max_seq_length
        self.sep, self.context = layout.sep_parallel_degree, layout.context_parallel_degree
        self.tokens, self.queries = layout.tokens_per_rank, self.length // self.context
        self.rows = self.tokens // tp if layout.sequence_parallel else self.tokens
        self.ep = layout.expert_parallel_degree if shape.num_experts else 1
        self.hidden = shape.hidden_size
        self.heads, self.key_heads = shape.num_attention_heads // tp, max(shape.num_key_value_heads // tp, 1)
        if self.sep > 1:  # rank 0 has the most heads
            shared = distribute(self.heads, self.key_heads, self.sep)
            self.heads, self.key_heads = shared.of(0)[0], len(shared.copies[0])
        self.query = shape.query_size // tp
        self.key = max(shape.key_value_size // tp, shape.head_dim)
        self.columns = self.query + 2 * self.key
        if shape.attention_parameters:  # as many operations as the projections of latent attention
            self.columns = shape.attention_parameters // shape.hidden_size // tp - self.query
        self.inner = shape.intermediate_size // (tp if self.ep == 1 else 1)
        self.routed = self.tokens if self.ep == 1 else self.rows  # tokens that the experts of a layer get
        self.vocabulary = -(-shape.vocab_size // tp)
        self.spread = self.tokens * self.hidden * WIDTH  # bytes of the activations of all ranks

    @property
    def overlapped(self) -> bool:
        """Whether a layer's collectives overlap with its matmuls."""
        return self.layout.overlap != "serial"

    def linear_backward(self, name: str, m: int, k: int, n: int, **fields) -> Iterator[Operation]:
        yield matmul(f"{name}.input_gradient", m, n, k, phase="backward", **fields)
        yield matmul(f"{name}.weight_gradient", k, m, n, phase="backward", **fields)

    def vector(self, name: str, elements: float, cost: tuple[int, ...], **fields) -> Operation:
        """A chain of kernels with a ``cost`` as in TRAFFIC, or also the bytes exchanged with other chains."""
        total, kernels, outside = cost if len(cost) == 3 else (*cost, cost[0])
        times = kernels * fields.pop("times", 1)
        moved, cached = elements * total / kernels, elements * (total - outside) / kernels
        return Operation(name, "vector", bytes=moved, cached=cached, times=times, **fields)

    def collective(self, name: str, what: str, backward: bool = False, may_overlap: bool = True) -> Operation:
        """A collective among the tensor-parallel ranks. ``may_overlap``: whether a matmul may hide it."""
        overlaps = "matmul" if self.overlapped and may_overlap else ""
        phase = "backward" if backward else "forward"
        return collective(name, what, self.spread, "tp", self.tp, phase, overlaps=overlaps)

    def into_columns(self, name: str) -> Iterator[Operation]:
        if self.tp > 1 and self.layout.sequence_parallel:
            yield self.collective(name, "all_gather")

    def out_of_rows(self, name: str) -> Iterator[Operation]:
        if self.tp > 1:
            yield self.collective(name, "reduce_scatter" if self.layout.sequence_parallel else "all_reduce")

    def out_of_rows_backward(self, name: str) -> Iterator[Operation]:
        if self.tp > 1 and self.layout.sequence_parallel:
            # Without a fused kernel the compute stream waits for the gradient, which both matmuls need.
            yield self.collective(name, "all_gather", True, may_overlap=self.overlapped)

    def into_columns_backward(self, name: str, m: int, k: int, n: int, **fields) -> Iterator[Operation]:
        """The matmuls of the layer, and the sum of its input gradient; PaddleNLP's head keeps it whole."""
        yield from self.linear_backward(name, m, k, n, **fields)
        if self.tp > 1:
            scattered = self.layout.sequence_parallel and name != "lm_head"
            yield self.collective(name, "reduce_scatter" if scattered else "all_reduce", True)

    def attended(self) -> float:
        """The share of all query-key pairs for which attention computes a score."""
        if self.layout.mask == "documents":
            return causal(self.length // DOCUMENTS) / DOCUMENTS
        return causal(self.length)

    def norm(self, name: str, backward: bool = False) -> Operation:
        cost = TRAFFIC["rms_norm"][backward]
        phase = "backward" if backward else "forward"
        return self.vector(name, self.rows * self.hidden, cost, phase=phase)

    def attention(self, backward: bool = False) -> Iterator[Operation]:
        shape, phase = self.shape, "backward" if backward else "forward"
        rope = self.rope[backward]
        if not backward:
            yield self.vector("attention.rope", self.tokens * (self.query + self.key), rope)
        times = BACKWARD_ATTENTION if backward else 1.0
        scores = float(self.batch * self.heads * self.queries * self.length)
        flops = 4.0 * shape.head_dim * scores * times * self.attended()
        moved = (2 if backward else 1) * self.tokens * 2 * (self.query + self.key) * WIDTH
        shapes = (
            (self.batch, self.length, self.heads, shape.head_dim),
            (self.batch, self.length, self.key_heads, shape.head_dim),
        )
        yield from self.exchanged_heads(phase)
        attention = Operation("attention", "attention", flops, moved, shapes=shapes, phase=phase)
        yield from self.fused_attention(attention)
        if backward:
            yield self.vector("attention.rope", self.tokens * (self.query + self.key), rope, phase="backward")

    def exchanged_heads(self, phase: str) -> Iterator[Operation]:
        """Ulysses' exchange of query and output, and of key and value, in rounds of a send and a receive."""
        rounds = self.sep - 1 + self.sep % 2
        for heads in (self.heads, self.key_heads) if self.sep > 1 else ():
            part = self.tokens * heads * self.shape.head_dim * WIDTH
            yield collective("attention", "send", part, "heads", self.sep, phase, times=2 * 2 * rounds)

    def fused_attention(self, attention: Operation) -> Iterator[Operation]:
        """One kernel; in a ring a block for the keys of each rank, which arrive during the block before."""
        if self.context == 1:
            yield attention
            return
        phase, others, backward = attention.phase, self.context - 1, attention.phase == "backward"
        block = attention._replace(flops=attention.flops / self.context)
        yield block
        yield block._replace(times=others)
        queries, keys = (
            self.tokens * self.sep * heads * self.shape.head_dim for heads in (self.heads, self.key_heads)
        )
        (of_query, of_key), kernels = MERGE_GRADIENTS if backward else MERGE
        moved = of_query * queries + of_key * 2 * keys
        yield self.vector("attention.merge", moved, (1, kernels), times=self.context, phase=phase)
        payload = keys * (WIDTH + SINGLE * backward)
        # Key and value. A ring of an even number of ranks sends and receives at the same time.
        times = 2 * others * (1 + self.context % 2)
        ring = ("ring", self.context, phase)
        yield collective("attention", "send", payload, *ring, times=times, overlaps="attention")

    def attention_block(self) -> Iterator[Operation]:
        columns = self.columns
        yield from self.into_columns("attention.qkv")
        yield matmul("attention.qkv", self.tokens, self.hidden, columns)
        if self.shape.attention_bias:
            yield self.vector("attention.bias", self.tokens * columns, (4, 1))
        yield self.vector("attention.split", self.tokens * columns, (4, 3))
        yield from self.attention()
        yield matmul("attention.out", self.tokens, self.query, self.hidden)
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

    def layers(self) -> list[Layer]:
        """The feed-forward layers of a decoder layer: a dense one, or the experts and a shared expert."""
        if not self.shape.num_experts:
            return [Layer("mlp", self.tokens, self.inner)]
        layers = [self.experts()]
        if shared := self.shape.shared_expert_intermediate_size // self.tp:
            layers.append(Layer("shared_expert", self.tokens, shared))
        return layers

    def split_layers(self) -> list[Layer]:
        """The feed-forward layers that tensor parallelism splits."""
        return [layer for layer in self.layers() if layer.name != EXPERTS or self.ep == 1]

    def experts(self) -> Layer:
        """The experts of a rank, with balanced routing of the tokens of all ranks that share the experts."""
        number = self.shape.num_experts // self.ep
        rows = max(1, round(self.routed * self.shape.experts_per_token / number))
        return Layer(EXPERTS, rows, self.inner, number)

    def routing(self, phase: str) -> Iterator[Operation]:
        """The operations of an MoE layer except its feed-forward layers."""
        number = self.shape.num_experts
        if not number:
            return
        yield matmul("experts.router", self.rows, self.hidden, number, phase=phase)
        moves = (4, 2)
        routed = self.routed * self.shape.experts_per_token * self.hidden
        yield self.vector("experts.permute", 2 * routed, moves, phase=phase)
        if self.ep > 1:
            # Rows and results in rounds of a send and a receive, permuted once more by the experts' owners.
            times, part = 2 * 2 * (self.ep - 1 + self.ep % 2), WIDTH * routed / self.ep
            yield collective("experts", "send", part, EXPERTS, self.ep, phase, times=times)
            yield self.vector("experts.permute", 2 * routed, moves, phase=phase)

    def swiglu(self, layer: Layer, backward: bool = False) -> Operation:
        cost = TRAFFIC["swiglu"][backward]
        phase, elements = "backward" if backward else "forward", layer.groups * layer.rows * layer.inner
        return self.vector(f"{layer.name}.swiglu", elements, cost, phase=phase)

    def feed_forward(self) -> Iterator[Operation]:
        yield from self.routing("forward")
        split = self.split_layers()
        if split:
            yield from self.into_columns("mlp.up")
        for layer in self.layers():
            name, rows, inner, groups = layer
            yield matmul(f"{name}.up", rows, self.hidden, 2 * inner, groups=groups)
            yield self.swiglu(layer)
            yield matmul(f"{name}.down", rows, inner, self.hidden, groups=groups)
        if split:
            yield from self.out_of_rows("mlp.down")

    def feed_forward_backward(self) -> Iterator[Operation]:
        split = self.split_layers()
        if split:
            yield from self.out_of_rows_backward("mlp.down")
        for layer in reversed(self.layers()):
            name, rows, inner, groups = layer
            yield from self.linear_backward(f"{name}.down", rows, inner, self.hidden, groups=groups)
            yield self.swiglu(layer, backward=True)
            into = self.into_columns_backward if layer in split[:1] else self.linear_backward
            yield from into(f"{name}.up", rows, self.hidden, 2 * inner, groups=groups)
        yield from self.routing("backward")

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
        yield self.vector("accumulate", self.layer_weights(), (ACCUMULATE, 2), phase="backward")

    def recomputed(self) -> Iterator[Operation]:
        """The operations that the backward pass of a layer recomputes before it starts."""
        again = {"full": self.layer, "full_attn": self.attention_block, "core_attn": self.attention}
        for operation in again[self.layout.recompute_granularity]():
            yield operation._replace(phase="recompute")

    def layer_weights(self) -> float:
        """Weights of a decoder layer on one rank."""
        experts = self.shape.expert_parameters if self.ep > 1 else 0
        return (self.shape.layer_parameters - experts) / self.tp + experts / self.ep

    def embedding(self) -> Iterator[Operation]:
        size = self.tokens * self.hidden
        yield self.vector("embedding", size, (4, 1))
        if self.tp > 1:
            yield self.collective("embedding", "all_reduce", may_overlap=False)
        yield from self.out_of_rows_backward("embedding")
        table = self.vocabulary * self.hidden
        yield self.vector("embedding", size, (6, 1), phase="backward")
        yield self.vector("embedding.accumulate", table, (WIDTH + ACCUMULATE, 3), phase="backward")

    def head(self) -> Iterator[Operation]:
        logits, table = self.tokens * self.vocabulary, self.vocabulary * self.hidden
        yield self.norm("final_norm")
        yield from self.into_columns("lm_head")
        yield matmul("lm_head", self.tokens, self.hidden, self.vocabulary)
        yield self.vector("loss", logits, LOSS_FORWARD, dtype="float32")
        if not self.layout.has_logits(self.shape):
            yield matmul("lm_head", self.tokens, self.hidden, self.vocabulary, phase="recompute")
        yield self.vector("loss", logits, LOSS_BACKWARD, dtype="float32", phase="backward")
        yield from self.into_columns_backward("lm_head", self.tokens, self.hidden, self.vocabulary)
        yield self.norm("final_norm", backward=True)
        yield self.vector("lm_head.accumulate", table, (ACCUMULATE, 2), phase="backward")

    def owned(self, stage: int) -> float:
        """Weights of the stage whose optimizer states one rank holds."""
        own = self.own_experts(stage)
        return (self.weights(stage) - own) / self.layout.sharding_degree + own

    def own_experts(self, stage: int) -> float:
        """Weights of the stage's experts that expert parallelism distributes."""
        layers = self.layout.stage_layers(self.shape)
        moe_layers = layers[stage] - self.shape.dense_of(layers, stage)
        return moe_layers * self.shape.expert_parameters / self.ep if self.ep > 1 else 0.0

    def weights(self, stage: int) -> float:
        """Weights of the stage on one rank."""
        first, last = stage == 0, stage == self.layout.loss_stage
        tables = first + last - (first and last and self.shape.tie_word_embeddings)
        layers = self.layout.stage_layers(self.shape)
        dense = self.shape.dense_of(layers, stage)
        total = (layers[stage] - dense) * self.layer_weights()
        if dense:
            total += dense * self.shape.dense.layer_parameters / self.tp
        return total + tables * self.vocabulary * self.hidden

    def shard(self, what: str, payload: float, phase: str) -> Operation:
        layout = self.layout
        group, size = ("sharding", layout.sharding_degree) if layout.sharding else ("dp", layout.replicas)
        return collective("sharding", what, payload, group, size, phase)
