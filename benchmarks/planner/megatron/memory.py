"""The peak memory of a card in a step of Megatron, as MindSpeed-LLM runs it, to judge published runs.

MindFormers differs in its gradients only (`Software`). Per weight: 2 bytes, a gradient of 4 (fp16: 2), master
weight and moments of 12 (fp16: 16, with a float32 gradient), the last divided among the data-parallel ranks
by the distributed optimizer. What a layer saves is in `saved_layer`, what releases differ in in `release`.

During a step a rank holds what its micro batches in flight have saved (`schedule`), and for a while the
logits, or the gradients of a layer. Megatron reports the first step, in which the moments come into being
after the backward pass; so the first peak is that of the activations without moments, or of the update, in
which one piece of a weight may be there twice (`shards`), or of the warm-up before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_npu.plan.memory_model.memory import weights
from llm_npu.plan.shape import ModelShape

from ..programs.layout import OFFLOADED_PARTS, PublishedLayout
from ..programs.software import Software
from .release import CURRENT, Release, Switches
from .saved_layer import HALF, SINGLE, Saved, saved
from .schedule import fullest, passes
from .shards import BUCKET, largest_piece

WORKSPACE = 16 << 20  # of an operator, at the least: the rise of every peak whose update copies nothing
MASK = 2048 * 2048  # bytes: MindSpeed's compressed causal mask (flash_attention/generate_mask)


@dataclass(frozen=True)
class RankMemory:
    """Bytes on a rank of pipeline stage ``stage``.

    ``masters``, ``moments``: of the optimizer. ``buffers``: what stays from step to step beside them.
    ``activations``: with the logits. ``step``: what the update needs beside all states. ``warm_up``: before
    the first step.
    """

    stage: int
    weights: float
    gradients: float
    masters: float
    moments: float
    buffers: float
    activations: float
    step: float
    warm_up: float

    @property
    def peak(self) -> float:
        """Of a step, once the optimizer's states exist."""
        held = self.weights + self.gradients + self.masters + self.moments + self.buffers
        return held + max(self.activations, self.step)

    @property
    def first_peak(self) -> float:
        """Of the first step, which Megatron reports: the moments come into being after its backward."""
        held = self.weights + self.gradients + self.masters + self.buffers
        return max(held + self.activations, held + self.moments + self.step, self.warm_up)


def ranks(
    shape: ModelShape,
    layout: PublishedLayout,
    software: Software,
    release: Release = CURRENT,
    switches: Switches | None = None,
    replica: int | None = None,
) -> tuple[RankMemory, ...]:
    """The memory of a rank of every stage; of data-parallel rank ``replica``, None for the fullest."""
    layers = layout.stage_layers(shape)
    run = _Run(shape, layout, software, release, switches or Switches(), layers, replica)
    return tuple(run.rank(stage) for stage in range(len(layers)))


def peak(shape: ModelShape, layout: PublishedLayout, software: Software, release: Release = CURRENT) -> int:
    """The bytes of the fullest card, once the optimizer's states exist."""
    return int(max(rank.peak for rank in ranks(shape, layout, software, release)))


@dataclass(frozen=True)
class _Run:
    shape: ModelShape
    layout: PublishedLayout
    software: Software
    release: Release
    switches: Switches
    layers: tuple[int, ...]
    replica: int | None

    @property
    def tokens(self) -> int:
        """Of a micro batch on a card."""
        layout = self.layout
        length = self.switches.tokens or layout.max_seq_length
        return layout.per_device_train_batch_size * length // layout.context_parallel_degree

    @property
    def chunks(self) -> int:
        return self.switches.chunks or self.layout.virtual_pp_degree

    def rank(self, stage: int) -> RankMemory:
        layout, switches = self.layout, self.switches
        count, shared = self._weights(stage), layout.sharding_degree
        wide = switches.half == "bf16"
        if (experts := layout.expert_parallel_degree) > 1 and shared > 1:  # fewer cards have the same experts
            mine = sum(sum(part) for part in self._buffers(stage)[1])
            shared = count / ((count - mine) / shared + mine / max(shared / experts, 1))
        masters = SINGLE * count / shared / (OFFLOADED_PARTS if layout.offload else 1)
        gradients = min(SINGLE if wide else HALF, self.software.gradient_width) * count
        if self.software.scatters_at_once and layout.micro_batches == 1:
            gradients /= layout.sharding_degree
        return RankMemory(
            stage=stage,
            weights=HALF * count - (HALF * count / shared if switches.reuses else 0),
            gradients=gradients,
            masters=masters,
            moments=masters * ((1 if switches.narrow_moments else 2) + (not wide)),
            buffers=self._kept_buffers(stage),
            activations=self._activations(stage),
            step=self._update(stage),
            warm_up=self._warm_up(),
        )

    def _weights(self, stage: int) -> int:
        """Elements on a rank, which has its share of the experts."""
        whole, parallel = sum(weights(self.shape, self.layout, stage)), self.layout.expert_parallel_degree
        mixed = self.layers[stage] - self.shape.dense_of(self.layers, stage)
        experts = mixed * self.shape.expert_parameters // self.layout.tensor_parallel_degree
        return whole - experts + experts // parallel

    def _kept_buffers(self, stage: int) -> float:
        """Masks, and the buffer that sequence-parallel layers gather their input into."""
        layout = self.layout
        masks = MASK
        if self.release.legacy and not self.shape.has_band(layout.max_seq_length):
            masks = (self.switches.tokens or layout.max_seq_length) ** 2 * self.layers[stage]
        gathered = HALF * self.tokens * self.shape.hidden_size if layout.sequence_parallel else 0
        return masks + gathered

    def _warm_up(self) -> float:
        layout = self.layout
        whole = 1 if self.release.warms_whole_sequence else layout.context_parallel_degree
        tokens = layout.per_device_train_batch_size * layout.max_seq_length // whole
        width = self.shape.dense_intermediate_size or self.shape.intermediate_size
        return self.release.warm_up * HALF * tokens * width / layout.tensor_parallel_degree

    def _update(self, stage: int) -> float:
        """Beside the states: above all a piece of a weight, as AdamW returns it or reused weights move."""
        switches, layout = self.switches, self.layout
        # A chunk keeps the last input that it received, and its gradient (set_input_tensor).
        received = self.chunks - (stage == 0)
        between = HALF * self.tokens * self.shape.hidden_size
        inputs = 2 * received * between / (layout.tensor_parallel_degree if layout.sequence_parallel else 1)
        if not (self.release.copies_update or switches.reuses or switches.narrow_moments):
            return inputs + WORKSPACE
        degree = layout.sharding_degree
        overlapped = self.software.overlaps_gradients and stage == 0
        own, experts = self._buffers(stage)
        pieces = [
            largest_piece(chunk, degree, BUCKET if overlapped and not number else None, self.replica)
            for number, chunk in enumerate(own)
        ]
        of_experts = max(degree // layout.expert_parallel_degree, 1)
        pieces += [largest_piece(chunk, of_experts, None, None) for chunk in experts]
        # O2AdamW widens both moments of a weight (MindSpeed-LLM, tasks/models/common/adamw.py).
        width = 3 * SINGLE if switches.narrow_moments else SINGLE
        return inputs + max(width * max(pieces), WORKSPACE)

    def _buffers(self, stage: int) -> tuple[list[list[int]], list[list[int]]]:
        """The weights of each chunk in Megatron's order: all but experts, and experts on their cards."""
        shape, degree = self.shape, self.layout.tensor_parallel_degree
        hidden, matrix = shape.hidden_size, shape.vocab_size // degree * shape.hidden_size
        columns = (shape.query_size + 2 * shape.key_value_size) // degree
        attention = [shape.query_size // degree * hidden, columns * hidden]
        if shape.attention_parameters:
            attention = [shape.attention_parameters // degree]
        attention += [columns] * shape.attention_bias
        width, dense = shape.intermediate_size // degree, shape.dense_of(self.layers, stage)
        mixture = shape.num_experts // self.layout.expert_parallel_degree
        chunks, experts = [], []
        for number, positions in enumerate(self._chunk_layers(stage)):
            own: list[int] = [matrix] * (stage == number == 0)
            mixed: list[int] = []
            for _ in range(positions):
                own += [hidden, *attention, hidden]
                if shape.num_experts and dense <= 0:
                    own += [hidden * shape.num_experts]
                    if wide := shape.shared_expert_intermediate_size // degree:
                        own += [2 * hidden * wide, hidden * wide]
                    sizes = [2 * hidden * width, hidden * width]
                    mixed += [mixture * size for size in sizes] if self.software.grouped else sizes * mixture
                else:
                    inner = shape.dense_intermediate_size // degree if shape.num_experts else width
                    own += [2 * hidden * inner, hidden * inner]
                    dense -= 1
            chunks.append(own)
            experts.append(mixed)
        if stage == len(self.layers) - 1:
            tied = shape.tie_word_embeddings and stage == 0
            chunks[-1] += [hidden] + ([] if tied else [matrix])
        return chunks, experts

    def _chunk_layers(self, stage: int) -> list[int]:
        """The layers of each chunk of a stage, without empty ones."""
        stages, chunks, empty = len(self.layers), self.chunks, self.switches.empty
        if chunks == 1:
            return [self.layers[stage]]
        layers_each = (sum(self.layers) + len(empty)) // (stages * chunks)
        firsts = [(number * stages + stage) * layers_each for number in range(chunks)]
        return [sum(first + place not in empty for place in range(layers_each)) for first in firsts]

    def _activations(self, stage: int) -> float:
        shape, layout, stages = self.shape, self.layout, len(self.layers)
        again = layout.recompute_layers(shape, stage)
        dense = shape.dense_of(self.layers, stage)
        held, forward, backward = [], [], []
        for number, count in enumerate(self._chunk_layers(stage)):
            # Layers to compute again are dealt to the chunks in turn, and are the first ones of each.
            mine = -(-max(again - number, 0) // self.chunks)
            of_feed_forward = -(-max(self.switches.feed_forwards_again - number, 0) // self.chunks)
            kept, most = 0.0, 0.0
            layers = []
            for place in range(count):
                layer = self._saved(shape.dense if place < dense and shape.num_experts else shape)
                size = layer.kept(
                    self._granularity(place < mine),
                    self.switches.swaps,
                    place < self.switches.norms_again,
                    place < of_feed_forward,
                )
                layers.append((layer, size))
                kept += size
            dense -= count
            freed = 0.0
            for layer, size in reversed(layers):
                most = max(most, layer.whole - size + layer.gradients - freed)
                freed += size
            held.append(kept)
            forward.append(0.0)
            backward.append(most)
        if stage == stages - 1:
            end, at_loss, after = self._loss()
            held[-1] += end
            forward[-1], backward[-1] = at_loss, max(backward[-1] - end, after)
        if stage == 0:
            embedding = shape.vocab_size * shape.hidden_size / layout.tensor_parallel_degree
            # The gradient of a tied head waits for that of the embedding.
            width = self.release.embedding + HALF * (shape.tie_word_embeddings and stages == 1)
            backward[0] = max(backward[0], width * embedding - held[0])
        order = passes(stage, stages, self.chunks, layout.micro_batches, self.release.fills)
        return fullest(order, held, forward, backward)

    def _granularity(self, again: bool) -> str:
        if not again:
            return ""
        return self.layout.recompute_granularity

    def _saved(self, shape: ModelShape) -> Saved:
        return saved(shape, self.layout, self.tokens, self.software, self.release, self.switches)

    def _loss(self) -> tuple[float, float, float]:
        """Bytes that the last norm and the loss save, and what is there besides at the loss, and after it."""
        shape, degree = self.shape, self.layout.tensor_parallel_degree
        logits = self.tokens * shape.vocab_size / degree
        hidden = HALF * self.tokens * shape.hidden_size
        norm = 2 * hidden / (degree if self.layout.sequence_parallel else 1)
        softmax = SINGLE * logits
        head = HALF * shape.vocab_size * shape.hidden_size / degree  # its gradient
        after = max(HALF * logits, HALF * logits - softmax + head + hidden)
        return norm + softmax, (self.release.logit - SINGLE) * logits, after
