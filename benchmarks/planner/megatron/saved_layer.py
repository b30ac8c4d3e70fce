"""What a decoder layer of Megatron saves for its backward pass, and what that pass needs beside it.

For T tokens, tensor parallelism t, hidden size H, query width Q, key width K, A heads and inner width I, with
everything fused:

    4 N + 2 T (2 Q + 2 K) / t + 64 A T / t + 6 T I / t

with N = 2 T H, divided by t under sequence parallelism: the inputs and outputs of two norms, query, key,
value and attention's result, its statistics, and the feed-forward layer's two results. Unlike PaddleNLP,
Megatron saves the part of the input that a rank owns and gathers it again. The rotary embedding saves four
tables of cosines and sines, for queries and keys.

Composed operators save more. RMSNorm (megatron/legacy/model/rms_norm.py): its input in float32 instead of
bfloat16, and the normed input before it is scaled. Attention (megatron/core/fusions/fused_softmax.py): for a
score its probability in float32 and in bfloat16, and keys and values repeated for every head.

In a mixture I is that of the experts for their tokens, k T of them with k experts per token; the tokens in
the experts' order are saved before these, and after them to be weighted.
"""

from __future__ import annotations

from dataclasses import dataclass

from llm_npu.plan.shape import ModelShape

from ..programs.layout import PublishedLayout
from ..programs.software import Software
from .release import Release, Switches

HALF, SINGLE = 2, 4
STATISTICS = 64  # bytes per head and token: flash attention's maximum and sum, 8 float32 each
SCORE, SCORE_BACKWARD = 6, 8  # float32 and bfloat16; two gradients in float32
ROUTER = 12  # bytes per expert and token: float32 scores, their softmax, the chosen ones


@dataclass(frozen=True)
class Saved:
    """Bytes that a layer saves.

    ``entry``: its input. ``norms``: the results of both norms. ``attention``: by self-attention, without its
    input and ``core``, what it saves between query, key, value and result. ``middle``: the input of the
    second norm. ``feed_forward``: by that layer or by experts, without their input. ``result``: of the
    activation function, a part of it. ``gradients``: what the backward pass of the layer needs beside what
    was saved.
    """

    entry: float
    norms: float
    attention: float
    core: float
    middle: float
    feed_forward: float
    result: float
    gradients: float

    @property
    def whole(self) -> float:
        return self.entry + self.norms + self.attention + self.core + self.middle + self.feed_forward

    def kept(self, granularity: str, swaps: bool, norms: bool, feed_forward: bool) -> float:
        """Bytes kept with recompute.

        ``granularity``: "full", "full_attn", "core_attn", "activation" or "". ``swaps``: self-attention and
        its input are in the host's memory. ``norms``, ``feed_forward``: of these the results are computed
        again.
        """
        if granularity == "full":
            return self.entry
        if granularity == "full_attn":
            return self.whole - self.attention - self.core
        if granularity == "core_attn":  # its result is the input of the next product
            return self.whole - self.core
        kept_bytes = self.whole
        if feed_forward:
            kept_bytes -= self.feed_forward
        elif granularity == "activation":
            kept_bytes -= self.result
        if swaps:
            kept_bytes -= self.attention + self.core + self.norms / 2
        if norms:
            kept_bytes -= self.norms / (2 if swaps else 1)
        return kept_bytes


def saved(
    shape: ModelShape,
    layout: PublishedLayout,
    tokens: int,
    software: Software,
    release: Release,
    switches: Switches,
) -> Saved:
    """What a layer of ``shape`` saves for a micro batch of ``tokens`` on a card."""
    degree, hidden = layout.tensor_parallel_degree, shape.hidden_size
    between = HALF * tokens * hidden / (degree if layout.sequence_parallel else 1)
    query = HALF * tokens * shape.query_size / degree
    key = HALF * tokens * shape.key_value_size / degree
    inner = HALF * tokens * shape.intermediate_size / degree
    experts = 0.0
    if copies := shape.experts_per_token:
        copies *= software.capacity
        inner *= copies
        experts = 2 * copies * HALF * tokens * hidden + ROUTER * tokens * shape.num_experts
    shared = HALF * tokens * shape.shared_expert_intermediate_size / degree
    # A product of the activation function and the gate saves both, if it is an operator of its own.
    feed_forward = (3 + ("swiglu" not in layout.fused)) * (inner + shared) + experts
    fused, heads = "attention" in layout.fused, shape.num_attention_heads / degree
    scores = 0 if fused else heads * tokens * layout.max_seq_length
    repeated = 0 if release.legacy or switches.repeats_keys else 2 * (query - key)
    weight = 2 * hidden * shape.intermediate_size / degree  # the larger one of the feed-forward layer
    if shape.num_experts and software.grouped:
        weight *= shape.num_experts // layout.expert_parallel_degree
    return Saved(
        entry=between,
        norms=2 * between * (1 if "rms_norm" in layout.fused else 3),
        attention=_attention(shape, layout, tokens, query, key, release, switches),
        core=STATISTICS * heads * tokens if fused else SCORE * scores + repeated,
        middle=between,
        feed_forward=feed_forward,
        result=inner + shared,
        gradients=max(2 * inner, HALF * tokens * hidden - inner + HALF * weight, SCORE_BACKWARD * scores),
    )


def _attention(
    shape: ModelShape,
    layout: PublishedLayout,
    tokens: int,
    query: float,
    key: float,
    release: Release,
    switches: Switches,
) -> float:
    heads = shape.num_attention_heads / layout.tensor_parallel_degree
    if switches.latent:
        # Query, key, value and result as flash attention has them, what is left of the result, the inputs
        # and outputs of both norms, and with rotary_input that of the rotary embedding.
        latent = switches.latent
        elements = heads * (4 * latent.padded + latent.value + latent.rotary * release.rotary_input)
        elements += 2 * (latent.query_rank + latent.key_rank) + latent.rotary
        return tokens * HALF * elements
    grouped = shape.num_key_value_heads < shape.num_attention_heads
    projected = query + 2 * key  # the product's result, of which key and value are views
    if grouped and (release.legacy or switches.repeats_keys):
        key = query
    saved_bytes = 2 * query + 2 * key
    fused = "rope" in layout.fused
    length = tokens // layout.per_device_train_batch_size
    saved_bytes += 4 * length * shape.head_dim * (SINGLE if release.legacy and fused else HALF)
    if release.legacy and fused:
        saved_bytes += 2 * (query + key)
    elif (release.rotary_input and fused) or switches.normed_heads:
        saved_bytes += projected + (query if grouped else 0)  # of groups, the query is copied
    return saved_bytes
