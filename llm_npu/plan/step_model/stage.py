"""The parts of a model on one rank of a pipeline stage, each as a list of operations.

Bytes count every read and write of a tensor once per kernel. For tensors split by tensor parallelism, they
are those of one rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from paddle_fused import registry

from ..layout import Layout
from ..shape import ModelShape
from .operations import Operation
from .software import Software

WIDTH, SINGLE = 2, 4  # bytes of bfloat16 and float32
BLOCK = 128  # attention computes whole blocks of this many queries and keys
DOCUMENTS = 4  # assumed number of documents in a packed sample of the mask "documents"
PRODUCTS = {"attention.qkv": 3, "mlp.up": 2}  # of the same input, in a program that has them apart
BACKWARD_ATTENTION = 2.5  # five products instead of two: fused attention recomputes the scores


def _fused(operator: str, **element: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """A row of TRAFFIC: one kernel, with the bytes that the operator is registered with."""
    forward, both = (registry.find(operator).cost(WIDTH, way, **element).bytes for way in (False, True))
    return (forward, 1, forward), (both - forward, 1, both - forward)


# For a chain of kernels: bytes read and written per element, number of kernels, and the bytes exchanged with
# others. Forward, then backward. Fused: one kernel in bfloat16. Composed: as PaddleNLP's and Megatron's
# Python code, with the norm and the softmax in float32.
TRAFFIC = {
    ("rms_norm", True): _fused("rms_norm", tokens=1, hidden=1),
    ("rms_norm", False): ((36, 6, 4), (60, 10, 6)),
    ("swiglu", True): _fused("swiglu", tokens=1, hidden=1),  # per element of I
    ("swiglu", False): ((18, 3, 6), (26, 4, 10)),
    ("rope", True): _fused("rotary_mul", tokens=1, heads=1, head_dim=1),
    ("rope", False): ((18, 5, 4), (18, 5, 4)),
    ("attention", False): ((40, 8, 4), (46, 10, 6)),  # per score, counted in a dry run of PaddleNLP's model
}
# Per logit: to float32, maximum, difference, exponential, sum, quotient; backward product, to bfloat16.
LOSS_FORWARD, LOSS_BACKWARD = (38, 7, 2), (14, 2, 6)
ADAM = registry.find("fused_adamw").cost(WIDTH, False, parameters=1).bytes  # per weight
CLIP = 12  # bytes per weight: a gradient is read for the norm, then scaled


def attended(shape: ModelShape, layout: Layout) -> float:
    """The share of all query-key pairs for which attention computes a score."""
    length = layout.max_seq_length

    def causal(part: int) -> float:
        blocks = max(1, part // BLOCK)
        return (blocks + 1) / (2 * blocks)

    if layout.mask == "full":
        return 1.0
    if layout.mask == "documents":
        return causal(length // DOCUMENTS) / DOCUMENTS
    window = shape.sliding_window
    if layout.mask == "band" and window and window < length:
        return min(causal(length), (window * (length - window / 2) + BLOCK * length / 2) / length**2)
    return causal(length)


class Stage:
    """The sizes on one rank of a stage, and the operations built from them."""

    def __init__(self, shape: ModelShape, layout: Layout, software: Software):
        tp = layout.tensor_parallel_degree
        self.shape, self.layout, self.software, self.tp = shape, layout, software, tp
        self.batch, self.length = layout.per_device_train_batch_size, layout.max_seq_length
        self.context, self.ep = layout.context_parallel_degree, layout.expert_parallel_degree
        self.tokens = layout.tokens_per_rank
        self.rows = self.tokens // tp if layout.sequence_parallel else self.tokens
        self.hidden = shape.hidden_size
        self.query = shape.query_size // tp
        self.key = max(shape.key_value_size // tp, shape.head_dim)
        self.columns = self.query + 2 * self.key
        if shape.attention_parameters:  # as many operations as the projections of latent attention
            self.columns = shape.attention_parameters // shape.hidden_size // tp - self.query
        self.inner = shape.intermediate_size // tp
        self.vocabulary = -(-shape.vocab_size // tp)
        self.spread = self.tokens * self.hidden * WIDTH  # bytes of all ranks' activations

    @property
    def overlapped(self) -> bool:
        """Whether a layer's own collectives overlap with its products."""
        return self.layout.overlap != "serial" or self.software.interleaves > 1

    def matmul(self, name: str, m: int, k: int, n: int, **fields) -> Operation:
        moved = (m * k + k * n + m * n) * WIDTH
        return Operation(
            name, "matmul", flops=2.0 * m * k * n, bytes=moved, shapes=((m, k), (k, n)), **fields
        )

    def linear_backward(self, name: str, m: int, k: int, n: int, **fields) -> Iterator[Operation]:
        yield self.matmul(f"{name}.input_gradient", m, n, k, phase="backward", **fields)
        yield self.matmul(f"{name}.weight_gradient", k, m, n, phase="backward", **fields)

    def vector(self, name: str, elements: float, cost: tuple[int, ...], **fields) -> Operation:
        """A chain of kernels: ``cost`` as in TRAFFIC; without the third number nothing is cached."""
        each, kernels, outside = cost if len(cost) == 3 else (*cost, cost[0])
        times = kernels * fields.pop("times", 1)
        moved, cached = elements * each / kernels, elements * (each - outside) / kernels
        return Operation(name, "vector", bytes=moved, cached=cached, times=times, **fields)

    def collective(self, name: str, what: str, backward: bool = False, beside: bool = True) -> Operation:
        """A collective among the tensor-parallel ranks. ``beside``: whether it may overlap with a product."""
        overlapped = self.overlapped or (backward and self.software.asynchronous)
        return Operation(
            f"{name}.{what}",
            "collective",
            phase="backward" if backward else "forward",
            collective=what,
            payload=self.spread,
            group="tp",
            group_size=self.tp,
            overlaps="matmul" if overlapped and beside else "",
        )

    def into_columns(self, name: str) -> Iterator[Operation]:
        if self.tp > 1 and self.layout.sequence_parallel:
            yield self.collective(name, "all_gather")

    def out_of_rows(self, name: str) -> Iterator[Operation]:
        if self.tp > 1:
            yield self.collective(name, "reduce_scatter" if self.layout.sequence_parallel else "all_reduce")

    def out_of_rows_backward(self, name: str) -> Iterator[Operation]:
        if self.tp > 1 and self.layout.sequence_parallel:
            # Without a fused kernel the compute stream waits for the gradient: both products need it.
            yield self.collective(name, "all_gather", True, beside=self.overlapped)

    def into_columns_backward(self, name: str, m: int, k: int, n: int, **fields) -> Iterator[Operation]:
        """The products of the layer, with the repeated gather overlapping the first."""
        sequence = self.layout.sequence_parallel
        if self.tp > 1 and sequence and self.software.gathers_again:
            yield self.collective(f"{name}.again", "all_gather", True)
        yield from self.linear_backward(name, m, k, n, **fields)
        if self.tp > 1:
            scattered = sequence and (self.software.scatters or name != "lm_head")
            sums = PRODUCTS.get(name, 1) if self.software.separate_products else 1
            for _ in range(sums):
                yield self.collective(name, "reduce_scatter" if scattered else "all_reduce", True)

    def norm(self, name: str, backward: bool = False) -> Operation:
        cost = TRAFFIC["rms_norm", "rms_norm" in self.layout.fused][backward]
        phase = "backward" if backward else "forward"
        return self.vector(name, self.rows * self.hidden, cost, phase=phase)

    def attention(self, backward: bool = False) -> Iterator[Operation]:
        shape, phase = self.shape, "backward" if backward else "forward"
        heads, share = shape.num_attention_heads // self.tp, attended(shape, self.layout)
        rope = TRAFFIC["rope", "rope" in self.layout.fused][backward]
        if not backward:
            yield self.vector("attention.rope", self.tokens * (self.query + self.key), rope)
        times = BACKWARD_ATTENTION if backward else 1.0
        scores = float(self.batch * heads * self.length**2) / self.context
        flops = 4.0 * shape.head_dim * scores * times
        moved = (2 if backward else 1) * self.tokens * 2 * (self.query + self.key) * WIDTH
        shapes = (
            (self.batch, self.length, heads, shape.head_dim),
            (self.batch, self.length, max(shape.num_key_value_heads // self.tp, 1), shape.head_dim),
        )
        if "attention" in self.layout.fused:
            yield Operation("attention", "attention", flops * share, moved, shapes=shapes, phase=phase)
            yield from self.ring(backward)
        else:
            for product in range(4 if backward else 2):
                yield self.matmul(
                    f"attention.product.{product}",
                    self.length,
                    shape.head_dim,
                    self.length,
                    times=self.batch * heads,
                    phase=phase,
                )
            yield self.vector("attention.softmax", scores, TRAFFIC["attention", False][backward], phase=phase)
        if backward:
            yield self.vector("attention.rope", self.tokens * (self.query + self.key), rope, phase="backward")

    def ring(self, backward: bool) -> Iterator[Operation]:
        """Keys and values, and in the backward pass their gradients, go around the context-parallel ranks
        while attention computes."""
        if self.context > 1:
            yield Operation(
                "attention.ring",
                "collective",
                phase="backward" if backward else "forward",
                times=(self.context - 1) * (2 if backward else 1),
                collective="send",
                payload=2 * self.tokens * self.key * WIDTH,
                group="cp",
                group_size=self.context,
                overlaps="attention",
            )

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
        yield self.vector("accumulate", self.layer_weights(), (self.software.accumulate, 2), phase="backward")

    def recomputed(self) -> Iterator[Operation]:
        """The operations that the backward pass of a layer recomputes first."""
        again = {
            "full": self.layer,
            "full_attn": self.attention_block,
            "core_attn": self.attention,
            "activation": self.activation,
        }
        found = list(again[self.software.granularity or self.layout.recompute_granularity]())
        if self.software.graph and found[-1].name == "residual":
            # A compiler drops what no gradient reads: the output of the layer, and the product before it.
            last = max(index for index, one in enumerate(found) if one.kind == "matmul")
            found = found[:last]
        for operation in found:
            yield operation._replace(phase="recompute")

    def activation(self) -> Iterator[Operation]:
        """The activation of the feed-forward layers alone."""
        for name, rows, inner, count in self.experts():
            yield self.swiglu(name, rows, inner, count)

    def layer_weights(self) -> float:
        """Weights of a decoder layer on one rank."""
        experts = self.shape.expert_parameters
        return (self.shape.layer_parameters - experts + experts / self.ep) / self.tp

    def embedding(self) -> Iterator[Operation]:
        size = self.tokens * self.hidden
        yield self.vector("embedding", size, (4, 1))
        if self.tp > 1:
            parts = self.layout.sequence_parallel and self.software.scatters
            yield self.collective("embedding", "reduce_scatter" if parts else "all_reduce", beside=False)
        yield from self.out_of_rows_backward("embedding")
        table = self.vocabulary * self.hidden
        yield self.vector("embedding", size, (6, 1), phase="backward")
        yield self.vector(
            "embedding.accumulate", table, (WIDTH + self.software.accumulate, 3), phase="backward"
        )

    def head(self) -> Iterator[Operation]:
        logits, table = self.tokens * self.vocabulary, self.vocabulary * self.hidden
        yield self.norm("final_norm")
        yield from self.into_columns("lm_head")
        yield self.matmul("lm_head", self.tokens, self.hidden, self.vocabulary)
        yield self.vector("loss", logits, LOSS_FORWARD, dtype="float32")
        yield self.vector("loss", logits, LOSS_BACKWARD, dtype="float32", phase="backward")
        yield from self.into_columns_backward("lm_head", self.tokens, self.hidden, self.vocabulary)
        yield self.norm("final_norm", backward=True)
        yield self.vector("lm_head.accumulate", table, (self.software.accumulate, 2), phase="backward")

    def weights(self, stage: int) -> float:
        """Weights of the stage on one rank."""
        stages, tables = self.layout.pipeline_parallel_degree, 0
        if stages == 1:
            tables = 1 if self.shape.tie_word_embeddings else 2
        elif stage in (0, stages - 1):
            tables = 1
        layers = self.software.layers(self.shape, self.layout)
        dense = self.shape.dense_of(layers, stage)
        found = (layers[stage] - dense) * self.layer_weights()
        if dense:
            found += dense * self.shape.dense.layer_parameters / self.tp
        return found + tables * self.vocabulary * self.hidden

    def shard(self, what: str, payload: float, phase: str, overlaps: str = "") -> Operation:
        return Operation(
            f"sharding.{what}",
            "collective",
            phase=phase,
            collective=what,
            payload=payload,
            group="sharding" if self.layout.sharding else "dp",
            group_size=self.layout.data_parallel_degree * self.context,
            overlaps=overlaps,
        )
