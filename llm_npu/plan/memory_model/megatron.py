"""The peak memory of a card in a step of Megatron, as MindSpeed-LLM runs it, to judge published runs.

MindFormers differs in its gradients only (`Software`). Per weight: 2 bytes, a gradient of 4 (fp16: 2), master
weight and moments of 12 (fp16: 16, with a float32 gradient), the last divided among the data-parallel ranks
by the distributed optimizer. Saved by a layer with everything fused, for T tokens, tensor parallelism t,
hidden size H, query width Q, key width K, A heads and inner width I:

    4 N + 2 T (2 Q + 2 K) / t + 64 A T / t + 6 T I / t

with N = 2 T H, divided by t under sequence parallelism: the inputs and outputs of two norms, query, key,
value and attention's result, its statistics, and the feed-forward layer's two results. Unlike PaddleNLP,
Megatron saves the part of the input that a rank owns and gathers it again. A logit takes 10 bytes: bfloat16,
float32, softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..layout import OFFLOADED_PARTS, Layout
from ..shape import ModelShape
from ..step_model.software import Software
from .ledger import Moment
from .memory import Memory, StageMemory, in_flight, weights

HALF, SINGLE = 2, 4
STATISTICS, LOGIT = 64, 10


@dataclass(frozen=True)
class RankMemory:
    """Bytes on a rank of pipeline stage ``stage``.

    ``masters``, ``moments``: of the optimizer. ``activations``: with the logits. ``step``: what the update
    needs beside all states.
    """

    stage: int
    weights: float
    gradients: float
    masters: float
    moments: float
    activations: float
    step: float

    @property
    def peak(self) -> float:
        """Of a step, once the optimizer's states exist."""
        held = self.weights + self.gradients + self.masters + self.moments
        return held + max(self.activations, self.step)

    @property
    def first_peak(self) -> float:
        """Of the first step, which Megatron reports: the moments come into being after its backward."""
        held = self.weights + self.gradients + self.masters
        return max(held + self.activations, held + self.moments + self.step)


def ranks(
    shape: ModelShape, layout: Layout, software: Software, half: str = "bf16", reuses: bool = False
) -> tuple[RankMemory, ...]:
    """The memory of a rank of every stage.

    ``half``: the type of weights, ``bf16`` or ``fp16``. ``reuses``: bfloat16 weights are
    part of the float32 ones (MindSpeed's --reuse-fp32-param).
    """
    layers = software.layers(shape, layout)
    return tuple(_rank(shape, layout, software, half, reuses, stage, layers) for stage in range(len(layers)))


def peak(shape: ModelShape, layout: Layout, software: Software) -> Memory:
    """The memory of a card of every stage, once the optimizer's states exist."""
    found = []
    for rank in ranks(shape, layout, software):
        parts = {
            "weights": rank.weights,
            "gradients": rank.gradients,
            "master weights": rank.masters,
            "optimizer": rank.moments,
            "activations and logits": rank.activations,
        }
        held = {name: int(size) for name, size in parts.items()}
        backward = Moment("backward", sum(held.values()), dict(held))
        del held["activations and logits"]
        held = held | {"optimizer's copies": int(rank.step)}
        found.append(StageMemory(rank.stage, (backward, Moment("update", sum(held.values()), held))))
    return Memory(tuple(found))


def _rank(
    shape: ModelShape,
    layout: Layout,
    software: Software,
    half: str,
    reuses: bool,
    stage: int,
    layers: tuple[int, ...],
) -> RankMemory:
    sizes = weights(shape, layout, stage, layers)
    count, shared = sum(sizes), layout.sharding_degree
    wide = half == "bf16"
    if (experts := layout.expert_parallel_degree) > 1 and shared > 1:  # fewer cards have the same experts
        mixed = layers[stage] - shape.dense_of(layers, stage)
        mine = shape.expert_parameters // experts // layout.tensor_parallel_degree * mixed
        shared = count / ((count - mine) / shared + mine / (shared / experts))
    masters = SINGLE * count / shared / (OFFLOADED_PARTS if layout.offload else 1)
    gradients = min(SINGLE if wide else HALF, software.gradient_width) * count
    if software.scatters_at_once and layout.micro_batches == 1:
        gradients /= shared
    return RankMemory(
        stage=stage,
        weights=HALF * count - (HALF * count / shared if reuses else 0),
        gradients=gradients,
        masters=masters,
        moments=(2 if wide else 3) * masters,
        activations=_activations(shape, layout, software, stage, layers),
        step=SINGLE * max(sizes) / shared,
    )


def layer(shape: ModelShape, layout: Layout) -> float:
    """Bytes that a layer saves for its backward pass."""
    tensor, tokens = layout.tensor_parallel_degree, layout.tokens_per_rank
    normed = HALF * tokens * shape.hidden_size / (tensor if layout.sequence_parallel else 1)
    heads = HALF * tokens * 2 * (shape.query_size + shape.key_value_size)
    statistics = STATISTICS * shape.num_attention_heads * tokens
    inner = 3 * HALF * tokens * shape.intermediate_size
    if copies := shape.experts_per_token:  # tokens in the order of the experts, before and after these
        inner *= copies
        inner += 3 * HALF * tokens * shape.shared_expert_intermediate_size
        normed += copies * HALF * tokens * shape.hidden_size / 2
    return 4 * normed + (heads + statistics + inner) / tensor


def _activations(
    shape: ModelShape, layout: Layout, software: Software, stage: int, layers: tuple[int, ...]
) -> float:
    tensor, tokens = layout.tensor_parallel_degree, layout.tokens_per_rank
    kept = layer(shape, layout)
    between = HALF * tokens * shape.hidden_size / (tensor if layout.sequence_parallel else 1)
    again = software.layers_again(shape, layout, stage) / max(layers[stage], 1)
    saved = {"full": between, "full_attn": kept / 2, "core_attn": 0.8 * kept, "activation": 0.8 * kept}
    each = (1 - again) * kept + again * saved.get(software.granularity or layout.recompute_granularity, kept)
    chunk = layers[stage] / layout.virtual_pp_degree
    found = in_flight(layout, stage) * chunk * each + between
    logits = LOGIT * tokens * shape.vocab_size / tensor if stage == len(layers) - 1 else 0.0
    # A recomputed layer is whole while its backward pass runs; the last one is not, beside the logits.
    whole = kept if again else 0.0
    backward = HALF * tokens * 2 * shape.intermediate_size / tensor
    return found + max(logits, whole + backward)
