"""The peak memory of a card in a training step, and its breakdown.

The model follows a step tensor by tensor, after Paddle has allocated the optimizer states: forward of the
last layer, loss, backward of the head and of the last layer, gradient of the embedding, gradients sent. A dry
run of one layout gives the same figures but is much slower, and a search has thousands of layouts.

Mixed precision is the trainer's default: bfloat16 weights; float32 gradients, master weights and AdamW
moments. On a card, the communication library and the runtime need additional memory (`llm_npu.plan.answer`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ..layout import Layout
from ..shape import ModelShape
from .decoder_layer import WORKING, Sizes, backward, forward
from .gathered import HALF, SINGLE, Gathered
from .ledger import CHUNK, Ledger, Moment, rounded

INDEX = 8  # bytes of a token's id, and of its label
SMALLEST_CHUNK = 256  # tokens, in paddle_fused.linear_cross_entropy
STATES_GROUP = 32 << 20  # bytes, in paddle_fused.ops.fused_adamw.offload
STAGE_2_BUFFER = 1 << 23  # elements, the default of Paddle's group_sharded_parallel


@dataclass(frozen=True)
class StageMemory:
    """The memory of a card of pipeline stage ``stage``; ``moments`` in the order of a step."""

    stage: int
    moments: tuple[Moment, ...]

    @property
    def fullest(self) -> Moment:
        return max(self.moments, key=lambda moment: moment.bytes)


@dataclass(frozen=True)
class Memory:
    """The memory of a card of each stage."""

    stages: tuple[StageMemory, ...]

    @property
    def fullest(self) -> StageMemory:
        """The stage with the highest peak."""
        return max(self.stages, key=lambda stage: stage.fullest.bytes)

    @property
    def peak_memory_bytes(self) -> int:
        return self.fullest.fullest.bytes


def peak(shape: ModelShape, layout: Layout) -> Memory:
    """The memory of a step of ``shape`` with ``layout``, which must be valid for it (``Layout.check``)."""
    z = Sizes(shape, layout)
    layers = layout.stage_layers(shape)
    stages = range(len(layers))
    # Middle stages differ only in the number of micro batches in flight, which is highest on stage 1.
    shown = sorted({0, 1, stages[-1]} & set(stages)) if len(set(layers)) == 1 else stages
    return Memory(tuple(_stage(shape, layout, z, stage, layers[stage]) for stage in shown))


def weights(shape: ModelShape, layout: Layout, stage: int) -> tuple[int, ...]:
    """The elements of each weight on a card of ``stage``, in the order of PaddleNLP's parameters."""
    ranks = layout.tensor_parallel_degree, layout.expert_parallel_degree
    return _weights(shape, *ranks, layout.stage_layers(shape), stage, layout.loss_stage)


@lru_cache(1024)  # a search asks for the same stage many times
def _weights(
    shape: ModelShape, tensor: int, experts: int, layers: tuple[int, ...], stage: int, loss_stage: int
) -> tuple[int, ...]:
    hidden = shape.hidden_size
    matrix = shape.vocab_size // tensor * hidden
    first, last = stage == 0, stage == loss_stage
    head = [hidden] + ([] if shape.tie_word_embeddings and first else [matrix])
    dense = shape.dense_of(layers, stage)
    of_layers = _of_layer(shape.dense, tensor, experts) * dense if dense else []
    of_layers += _of_layer(shape, tensor, experts) * (layers[stage] - dense)
    return (*[matrix] * first, *of_layers, *head * last)


def _of_layer(shape: ModelShape, tensor: int, experts: int) -> list[int]:
    """The elements of each weight of a decoder layer on a card."""
    hidden, key = shape.hidden_size, shape.key_value_size // tensor
    query = shape.query_size // tensor
    columns = [query + 2 * key] if shape.fuses_projections else [query, key, key]
    feed_forward = _feed_forward(shape, 1 if experts > 1 and shape.num_experts else tensor)
    biases = columns if shape.attention_bias else []
    layer = [*(hidden * column for column in columns), *biases, query * hidden]
    if shape.attention_parameters:
        layer = [shape.attention_parameters // tensor]
    if shape.num_experts:
        layer += [hidden * shape.num_experts, *feed_forward * (shape.num_experts // experts)]
        if shared := shape.shared_expert_intermediate_size // tensor:
            layer += [2 * hidden * shared, shared * hidden, hidden]
    else:
        layer += feed_forward
    return [*layer, hidden, hidden]


def _feed_forward(shape: ModelShape, tensor: int) -> list[int]:
    """The elements of each weight of a dense feed-forward layer, or of an expert."""
    matrix = shape.hidden_size * (shape.intermediate_size // tensor)
    return [2 * matrix, matrix] if shape.fuses_projections else [matrix] * 3


def _stage(shape: ModelShape, layout: Layout, z: Sizes, stage: int, layers: int) -> StageMemory:
    ledger, gathered = Ledger(), z.gathered
    sizes, experts = weights(shape, layout, stage), _own_experts(shape, layout, stage)
    owned = owned_weights(sizes, experts, layout)
    states(ledger, sizes, owned, layout, gathered)
    tokens = layout.tokens_per_rank
    tables = shape.max_position_embeddings * shape.head_dim * HALF
    ledger.take("rotary tables", 2 * layers * tables, "rotary tables")
    stages = layout.pipeline_parallel_degree
    batches = layout.micro_batches if stages > 1 else 1
    ledger.take("tokens", 2 * batches * tokens * INDEX, "samples")
    ledger.end("between steps")
    micro_batch(ledger, shape, layout, z, stage)
    if layout.replicas > layout.sharding_degree:
        ledger.take("joined", SINGLE * (sum(sizes) - sum(experts)), "fused gradient buffer")
        ledger.end("gradients sent")
    if layout.offload_optimizer == "device":
        ledger.give("joined")
        ledger.take("states", _largest_groups(owned), "optimizer")
        ledger.end("update")
    return StageMemory(stage, tuple(ledger.moments))


def micro_batch(ledger: Ledger, shape: ModelShape, layout: Layout, z: Sizes, stage: int = 0) -> None:
    """The forward and backward pass of the layers of ``stage``."""
    gathered, layers, tokens = z.gathered, layout.stage_layers(shape)[stage], layout.tokens_per_rank
    stages, mode = layout.pipeline_parallel_degree, layout.recompute_granularity if layout.recompute else ""
    kept = _kept(z, mode)
    # With sequence parallelism, the embedding's output is still whole.
    entry = z.whole if stage == 0 else z.hidden
    if layout.offload_activations:  # of the inputs, only the current layer's is on the card
        kept, entry = 0, z.hidden
    part = layers // layout.chunks  # the layers that a micro batch passes at a time
    others = in_flight(layout, stage) - 1
    waiting = 0 if layout.offload_activations else part * kept + entry
    waiting -= z.hidden if layout.in_v else 0  # the output, freed when it is sent
    ledger.take("micro batches", others * waiting, "micro batches in flight")
    if stages > 1:
        ledger.take("received", z.hidden, WORKING)
    gathered.forward(ledger, "embedding", (entry,))
    ledger.take("entry", entry)
    ledger.take("layers before", (part - 1) * kept)
    forward(ledger, z, mode)
    ledger.end("forward, last layer")
    if stage == layout.loss_stage:
        _loss(ledger, shape, layout, z, tokens)
        if layout.in_v and layout.has_logits(shape):  # of the next micro batch, which ends in another chunk
            softmax = SINGLE * tokens * shape.vocab_size // layout.tensor_parallel_degree
            ledger.take("next softmax", softmax, "logits and loss")
    else:
        ledger.take("gradient", z.hidden, WORKING)
    gradients = 0 if gathered.keeps else gathered.gradients("columns", "out", "up", "down")
    if first_is_fuller := gradients > kept:  # later layers leave more gradients than they free activations
        ledger.give("layers before")
        ledger.take("gradients of layers after", (layers - 1) * gradients, "gradients")
    backward(ledger, z, mode)
    ledger.end("backward, first layer" if first_is_fuller else "backward, last layer")
    ledger.give("layers before", "received")
    if stage == 0:
        if not first_is_fuller:
            ledger.take("gradients of layers after", (layers - 1) * gradients, "gradients")
        gathered.backward(ledger, "embedding")
        matrix = shape.vocab_size // layout.tensor_parallel_degree * shape.hidden_size
        ledger.take("embedding", HALF * matrix, WORKING)
        ledger.give("gradient")
        ledger.take("wide embedding", SINGLE * matrix, WORKING)
        ledger.end("gradient of the embedding")
        ledger.give("embedding", "wide embedding")
    ledger.give("gradient", "entry", "micro batches", "next softmax")


def _largest_groups(sizes: Sequence[int]) -> int:
    """Bytes of the states of two consecutive groups of weights (``paddle_fused...fused_adamw.offload``)."""
    groups: list[int] = []
    for size in sizes:
        states = 3 * rounded(SINGLE * size)
        if groups and groups[-1] + states <= STATES_GROUP:
            groups[-1] += states
        else:
            groups.append(states)
    return max(map(sum, pairwise([0, *groups])), default=0)


def _kept(z: Sizes, mode: str) -> int:
    """Bytes that a layer saves for its backward pass, including its output."""
    ledger = Ledger()
    forward(ledger, z, mode)
    return ledger.held("activations")


def in_flight(layout: Layout, stage: int) -> int:
    """The number of micro batches in flight (not yet through the backward pass) in a stage of 1F1B.

    With V model chunks per stage, the number of chunks in flight: 2 (P - s - 1) + (V - 1) P + 1, with
    DualPipeV 2 P + 1 on every stage.
    """
    stages, parts = layout.pipeline_parallel_degree, layout.chunks
    if layout.in_v:
        return 2 * stages + 1
    if parts == 1:
        return min(stages - stage, layout.micro_batches)
    return min(2 * (stages - stage - 1) + (parts - 1) * stages + 1, layout.micro_batches * parts)


def states(
    ledger: Ledger, sizes: tuple[int, ...], owner: Sequence[int], layout: Layout, gathered: Gathered
) -> None:
    """Weights, gradients, master weights and moments of the card with the most of them."""
    degree = layout.sharding_degree
    counted = _counted(sizes)
    parts = owned = Counter()
    for size, number in counted.items():
        parts[gathered.part(size)] += number
    if layout.sharding in ("stage1", "stage2") and degree > 1:
        owned = _counted(tuple(owner))
    ledger.take("weights", _allocated(parts, HALF), "weights")
    if not layout.offload_optimizer:
        wide = _allocated(owned, SINGLE)
        ledger.take("master weights", wide, "master weights")
        ledger.take("moments", 2 * wide + 2 * CHUNK * owned.total(), "optimizer")
    if layout.sharding == "stage2" and degree > 1:
        own = sum(size * count for size, count in owned.items())
        buffer = min(own, STAGE_2_BUFFER)
        owners = min(degree, len(sizes))  # a card without weights has no buffer
        gradients = SINGLE * ((owners - 1) * buffer + own)
    elif gathered.degree > 1:  # one buffer for unsharded weights, and temporary shards
        gradients = SINGLE * sum(gathered.padded(size) for size in sizes if not gathered.is_cut(size))
        if gathered.keeps:
            gradients += sum(SINGLE * gathered.part(size) for size in sizes if gathered.is_cut(size))
    else:
        gradients = _allocated(counted, SINGLE)
    ledger.take("gradients", gradients, "gradients")


def _own_experts(shape: ModelShape, layout: Layout, stage: int) -> tuple[int, ...]:
    """The elements of each weight of a card's experts if other cards have other experts."""
    ranks = layout.expert_parallel_degree
    if ranks == 1:
        return ()
    layers = layout.stage_layers(shape)
    moe_layers = layers[stage] - shape.dense_of(layers, stage)
    return tuple(_feed_forward(shape, 1) * (moe_layers * shape.num_experts // ranks))


def owned_weights(sizes: tuple[int, ...], experts: tuple[int, ...], layout: Layout) -> Sequence[int]:
    """The weights whose states are on the fullest card in sharding stages 1 and 2; without sharding, all."""
    degree = layout.sharding_degree
    if degree == 1:
        return sizes
    shared = tuple((Counter(sizes) - Counter(experts)).elements()) if experts else sizes
    return [*shares(shared, degree, largest_first=layout.sharding == "stage1"), *experts]


@lru_cache(1024)  # a stage of many experts has thousands of weights of a few sizes
def _counted(sizes: tuple[int, ...]) -> Counter[int]:
    """The number of weights of each size; callers must not modify the result."""
    return Counter(sizes)


def _allocated(tensors: Counter[int], width: int) -> int:
    """Bytes of tensors with ``width`` bytes per element, given the number of tensors of each size."""
    return sum(rounded(width * size) * count for size, count in tensors.items())


@lru_cache(1024)
def shares(sizes: tuple[int, ...], degree: int, largest_first: bool) -> list[int]:
    """The weights of the fullest card, if each weight is assigned to the card with the fewest elements."""
    degree = min(degree, len(sizes))  # further cards have no weights
    cards: list[list[int]] = [[] for _ in range(degree)]
    least = [(0, card) for card in range(degree)]  # a heap; ties go to the first card
    for size in sorted(sizes, reverse=True) if largest_first else sizes:
        held, card = heapq.heappop(least)
        cards[card].append(size)
        heapq.heappush(least, (held + size, card))
    return max(cards, key=sum, default=[])


def _loss(ledger: Ledger, shape: ModelShape, layout: Layout, z: Sizes, tokens: int) -> None:
    """The last norm, the head and the loss, forward and backward; leaves the last layer's gradient."""
    take, give, gathered = ledger.take, ledger.give, z.gathered
    vocabulary = shape.vocab_size // layout.tensor_parallel_degree
    gathered.expect(ledger, "head")
    take("last norm", z.hidden)
    take("last rstd", z.rstd)
    if z.split:
        take("head input", z.whole)
    if layout.has_logits(shape):
        _of_logits(ledger, shape, z, tokens, vocabulary)
    else:
        _in_chunks(ledger, shape, z, tokens, vocabulary)
    take("gradient", z.hidden, WORKING)
    give("gradient of all", "last norm", "last rstd")
    ledger.end("backward of the head")


def _of_logits(ledger: Ledger, shape: ModelShape, z: Sizes, tokens: int, vocabulary: int) -> None:
    """Head and loss, forward and backward, with whole logits."""
    take, give, gathered = ledger.take, ledger.give, z.gathered
    numbers, matrix = tokens * vocabulary, vocabulary * shape.hidden_size
    gathered.forward(ledger, "head", (HALF * numbers,))
    take("logits", HALF * numbers, "logits and loss")
    take("wide logits", SINGLE * numbers, "logits and loss")
    if shape.logits_in_float32:
        give("logits")
    take("softmax", SINGLE * numbers, "logits and loss")
    take("losses", 4 * SINGLE * tokens, "logits and loss")
    ledger.end("loss")
    give("wide logits", "logits", "losses")
    take("d logits", HALF * numbers, "logits and loss")
    give("softmax")
    gathered.backward(ledger, "head")
    take("gradient of all", z.whole, WORKING)
    take("d head", HALF * matrix, WORKING)
    give("head input", "d logits")
    take("wide d head", SINGLE * matrix, WORKING)
    give("wide d head", "d head")
    gathered.end(ledger, "head")


def _in_chunks(ledger: Ledger, shape: ModelShape, z: Sizes, tokens: int, vocabulary: int) -> None:
    """Head and loss by linear_cross_entropy, with logits in chunks and float32 copies of the weight."""
    take, give, gathered = ledger.take, ledger.give, z.gathered
    matrix = vocabulary * shape.hidden_size
    chunk = min(tokens, max(SMALLEST_CHUNK, tokens * shape.hidden_size // vocabulary)) * vocabulary
    gathered.forward(ledger, "head", (SINGLE * matrix,))
    take("wide head", SINGLE * matrix, "head and loss")
    take("chunk", 2 * SINGLE * chunk, "head and loss")  # logits and softmax
    take("losses", 4 * SINGLE * tokens, "head and loss")
    ledger.end("loss")
    give("losses")
    gathered.backward(ledger, "head")
    take("gradient of all", z.whole, WORKING)
    take("sum of d head", SINGLE * matrix, "head and loss")
    take("d head of a chunk", SINGLE * matrix, "head and loss")
    ledger.end("gradients of the head, in chunks")
    give("wide head", "chunk", "d head of a chunk", "head input")
    take("d head", HALF * matrix, WORKING)
    give("sum of d head")
    take("wide d head", SINGLE * matrix, WORKING)
    give("wide d head", "d head")
    gathered.end(ledger, "head")
