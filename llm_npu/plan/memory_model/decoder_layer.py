"""The memory of one decoder layer, forward and backward, tensor by tensor in allocation order.

The order comes from allocation traces of the virtual NPU; the names follow PaddleNLP's layers. Names of
tensors that a forward pass saves for its backward pass begin with ``kept``.
"""

from __future__ import annotations

from paddle_fused.context_parallel.heads import distribute

from ..layout import Layout
from ..shape import ModelShape
from .gathered import HALF, SINGLE, Gathered
from .ledger import Ledger

STATISTICS = 8  # float32 copies that flash attention saves of each row's maximum and of its sum
WORKING = "temporary"


class Sizes:
    """Bytes of a micro batch's tensors in one process.

    Attributes:
        whole: hidden states of all tokens.
        hidden: hidden states between layers.
        queries, keys: query and key that a rank's attention takes, with Ulysses all tokens of some heads.
        routed, routing: rows sent to experts; the router's scores, and indices, orders and probabilities.
        shared: inner values of a shared expert, gate, up and product.
        gathers: whether the layers after the first and the second norm have the hidden states of all tokens.
        columns, out, up, down: elements of the weight of each matmul of the layer; the largest one if there
            are several, because their gradients are computed one after the other.
    """

    def __init__(self, shape: ModelShape, layout: Layout):
        tensor, tokens = layout.tensor_parallel_degree, layout.tokens_per_rank
        own = tokens // tensor if layout.sequence_parallel else tokens
        hidden, width = shape.hidden_size, shape.intermediate_size
        query, key = shape.query_size // tensor, shape.key_value_size // tensor
        copies = max(shape.experts_per_token, 1)
        heads, key_heads = shape.num_attention_heads // tensor, key // shape.head_dim
        sep, ring = layout.sep_parallel_degree, layout.context_parallel_degree
        if sep > 1:  # rank 0 has the most heads
            heads, key_heads = distribute(heads, key_heads, sep).of(0)
        row = tokens * sep * shape.head_dim * HALF
        self.sep, self.ring, self.split, self.sequence = sep, ring, tensor > 1, layout.sequence_parallel
        self.one_product, self.experts = shape.fuses_projections, shape.num_experts > 0
        self.gathered = Gathered(shape, layout)
        self.whole, self.hidden = tokens * hidden * HALF, own * hidden * HALF
        self.query, self.key = tokens * query * HALF, tokens * key * HALF
        self.queries, self.keys = row * heads, row * key_heads
        self.statistics = tokens * sep * heads * (1 if ring > 1 else STATISTICS) * SINGLE
        self.middle = copies * tokens * (width // tensor) * HALF
        self.rstd, self.table = own * SINGLE, tokens * shape.head_dim * HALF
        self.shared = 3 * tokens * (shape.shared_expert_intermediate_size // tensor) * HALF
        spread = shape.num_experts and layout.expert_parallel_degree > 1
        sent = own if spread else tokens  # to experts
        self.routed = copies * sent * hidden * HALF if shape.num_experts else 0
        orders = 2 if spread else 1  # by expert; also by expert of the rank
        self.routing = sent * SINGLE * (shape.num_experts + copies * (5 + 3 * orders))
        # With expert parallelism, experts are not split by tensor parallelism, but shared experts are.
        is_split = self.split and (not spread or shape.shared_expert_intermediate_size > 0)
        self.gathers = {"first": self.split, "second": is_split}
        width //= 1 if spread else tensor
        self.columns = hidden * (query + 2 * key if self.one_product else query)
        self.out, self.up = query * hidden, (2 if self.one_product else 1) * hidden * width
        self.down = width * hidden

    @property
    def columns_outputs(self) -> tuple[int, ...]:
        """Bytes of the outputs of the query, key and value projections."""
        parts = (self.query, self.key, self.key)
        return (sum(parts),) if self.one_product else parts

    @property
    def up_outputs(self) -> tuple[int, ...]:
        return (2 * self.middle,) if self.one_product else (self.middle, self.middle)


def forward(ledger: Ledger, z: Sizes, mode: str = "") -> None:
    """The forward pass of a layer; the layer's input belongs to the previous layer.

    Args:
        mode: "" to save everything that the backward pass needs, or the recompute granularity: "core_attn",
            "full_attn" (recompute attention) or "full" (recompute the whole layer).
    """
    take, give, gathered = ledger.take, ledger.give, z.gathered
    gathered.expect(ledger, "columns")
    if mode == "full":
        gathered.forward(ledger, "columns", z.columns_outputs, then="out")
        gathered.forward(ledger, "out", (z.whole,))
        take("hidden after attention", z.hidden, WORKING)
        gathered.expect(ledger, "up")
        take("norm", z.whole, WORKING)
        if z.shared:
            take("shared expert", z.shared + z.whole, WORKING)
        gathered.forward(ledger, "up", z.up_outputs, then="down")
        take("gate and up", 2 * z.middle, WORKING)
        take("product", z.middle, WORKING)
        gathered.forward(ledger, "down", (z.whole,))
        give("gate and up", "product", "norm", "hidden after attention", "shared expert")
        take("kept output", z.hidden)
        return
    _norm(ledger, z, "first")
    _columns_input(ledger, z, "first")
    gathered.forward(ledger, "columns", z.columns_outputs, then="out")
    if z.one_product:
        take("qkv", z.query + 2 * z.key, WORKING)
    take("kept query", z.query)
    take("kept key", z.key)
    take("kept value", z.keys)
    _rotated(ledger, z)
    _attention(ledger, z)
    if mode:
        give("kept statistics")
    gathered.forward(ledger, "out", (z.whole,))
    _rows_output(ledger, z, "attention output", "first")
    give("qkv")
    if mode == "full_attn":
        give("kept query", "kept key", "kept value", "kept rotated query", "kept rotated key")
        give("kept attention", "kept tables", "kept output of heads")
        if z.split:
            give("kept first input")
            take("kept first norm", z.hidden)
    take("kept middle", z.hidden)
    give("attention output")
    gathered.expect(ledger, "up")
    _norm(ledger, z, "second")
    _columns_input(ledger, z, "second")
    if z.shared:  # its result is multiplied by a gate, so it is kept
        take("kept shared expert", z.shared + z.whole)
    gathered.forward(ledger, "up", z.up_outputs, then="down")
    take("kept gate and up", 2 * z.middle)
    take("kept product", z.middle)
    if z.experts:
        take("kept routed", 4 * z.routed + z.routing)
        take("experts together", 4 * z.routed, WORKING)
    gathered.forward(ledger, "down", (z.whole,))
    _rows_output(ledger, z, "feed-forward output", "second")
    give("experts together")
    take("kept output", z.hidden)
    give("feed-forward output")


def _norm(ledger: Ledger, z: Sizes, which: str) -> None:
    ledger.take(f"kept {which} norm", z.hidden)
    ledger.take(f"kept {which} rstd", z.rstd)


def _columns_input(ledger: Ledger, z: Sizes, which: str) -> None:
    """A column-parallel layer saves a copy of its input, or the gathered parts of all processes."""
    if z.gathers[which]:
        ledger.take(f"kept {which} input", z.whole)
        ledger.give(f"kept {which} norm")


def _rows_output(ledger: Ledger, z: Sizes, name: str, which: str) -> None:
    """The all-reduced output of a row-parallel layer; with sequence parallelism, the process's part."""
    if not z.gathers[which]:
        ledger.take(name, z.hidden, WORKING)
        return
    ledger.take(name, z.whole, WORKING)
    if z.sequence:
        ledger.take("part", z.hidden, WORKING)
        ledger.give(name, "part")
        ledger.take(name, z.hidden, WORKING)


def _rotated(ledger: Ledger, z: Sizes) -> None:
    ledger.take("kept rotated query", z.queries)
    ledger.take("kept rotated key", z.keys)
    if z.sep * z.ring > 1:  # a part of a sequence has copied rows of the tables
        ledger.take("kept tables", 2 * z.table)


def _attention(ledger: Ledger, z: Sizes) -> None:
    if z.ring > 1:  # float32 sums; the next keys; a block's output and statistics; steps of a merge
        blocks = (2 + 1 + 3 * 2) * z.queries + 2 * z.keys + 2 * STATISTICS * z.statistics
        ledger.take("blocks", blocks, WORKING)
    ledger.give("blocks")
    ledger.take("kept attention", z.queries)
    ledger.take("kept statistics", 2 * z.statistics)
    if z.sep > 1:  # from tokens of some heads to heads of some tokens
        ledger.take("kept output of heads", z.query)
        ledger.take("exchanged", 2 * z.queries, WORKING)
        ledger.give("exchanged")


def backward(ledger: Ledger, z: Sizes, mode: str = "") -> None:
    """The backward pass of a layer; replaces the output's gradient in ``gradient`` with the input's."""
    take, give, gathered = ledger.take, ledger.give, z.gathered
    gathered.expect(ledger, "down")
    give("kept output")
    if mode == "full":
        forward(ledger, z)
        give("kept output")
    _branch(ledger, z, "second")
    gathered.backward(ledger, "down", before="up")
    take("d product", z.middle, WORKING)
    if z.experts:
        take("d experts", 4 * z.routed, WORKING)
    _weight(ledger, z.down, "kept product", "branch")
    gathered.end(ledger, "down")
    take("d gate and up", 2 * z.middle, WORKING)
    give("kept gate and up", "d product", "d experts")
    gathered.backward(ledger, "up")
    take("d input", z.whole if z.gathers["second"] else z.hidden, WORKING)
    _weight(ledger, z.up, "kept second input", "kept second norm", "d gate and up")
    gathered.end(ledger, "up")
    give("kept routed")
    if z.shared:
        take("d shared expert", z.shared + z.whole, WORKING)
        give("d shared expert", "kept shared expert")
    gathered.expect(ledger, "out")
    _norm_gradient(ledger, z, "second")
    _branch(ledger, z, "first")
    if mode == "full_attn":
        _attention_again(ledger, z)
    gathered.backward(ledger, "out", before="columns")
    take("d attention", z.query, WORKING)
    _weight(ledger, z.out, "branch")
    gathered.end(ledger, "out")
    if mode == "core_attn":
        take("kept statistics", 2 * z.statistics)
    give("kept output of heads")
    if z.ring > 1:  # float32 sums of queries, and of keys held, computed and arriving; a block; steps
        blocks = (2 + 1 + 2 * 2) * z.queries + (3 * 4 + 4) * z.keys + 2 * STATISTICS * z.statistics
        take("blocks", blocks, WORKING)
        give("blocks")
    if z.sep > 1:  # gradients of own heads, of the others, and their sums
        take("exchanged", z.queries + 3 * z.query + 2 * z.keys, WORKING)
        give("exchanged")
    take("d rotated", z.query + 2 * z.key, WORKING)
    give("kept statistics", "kept attention", "kept rotated query", "kept rotated key", "kept value")
    give("d attention", "kept tables")
    take("d query", z.query, WORKING)
    give("kept query")
    take("d key", z.key, WORKING)
    give("kept key")
    take("d qkv", z.query + 2 * z.key, WORKING)
    give("d rotated", "d query", "d key")
    gathered.backward(ledger, "columns")
    take("d input", z.whole, WORKING)
    _weight(ledger, z.columns, "kept first input", "d qkv")
    gathered.end(ledger, "columns")
    _norm_gradient(ledger, z, "first")
    give("kept first norm")


def _branch(ledger: Ledger, z: Sizes, which: str) -> None:
    """The gradient of a residual sum is used twice; a row-parallel layer needs it for all tokens."""
    ledger.take("branch", z.hidden, WORKING)
    if z.gathers[which]:
        ledger.take("branch of all", z.whole, WORKING)
        ledger.give("branch")
        ledger.take("branch", z.whole, WORKING)
        ledger.give("branch of all")


def _weight(ledger: Ledger, size: int, *read: str) -> None:
    """The gradient of a weight of ``size`` elements, in bfloat16 and then in float32 for accumulation."""
    ledger.take("d weight", HALF * size, WORKING)
    ledger.give(*read)
    ledger.take("wide d weight", SINGLE * size, WORKING)
    ledger.give("wide d weight", "d weight")


def _norm_gradient(ledger: Ledger, z: Sizes, which: str) -> None:
    if z.sequence:
        ledger.take("part", z.hidden, WORKING)
        ledger.give("d input")
    ledger.take("d norm", z.hidden, WORKING)
    ledger.give("part", f"kept {which} rstd")
    ledger.take("sum", z.hidden, WORKING)
    ledger.give("d norm", "d input", "sum")
    ledger.give("kept middle" if which == "second" else "")


def _attention_again(ledger: Ledger, z: Sizes) -> None:
    """Recompute only attention, from the output of the norm."""
    z.gathered.forward(ledger, "columns", z.columns_outputs, then="out")
    if z.one_product:
        ledger.take("qkv", z.query + 2 * z.key, WORKING)
    for name, size in (("query", z.query), ("key", z.key), ("value", z.keys)):
        ledger.take(f"kept {name}", size)
    _rotated(ledger, z)
    _attention(ledger, z)
    _columns_input(ledger, z, "first")
    z.gathered.forward(ledger, "out", (z.whole,))
    ledger.take("attention output", z.whole, WORKING)
    ledger.give("attention output", "qkv")
