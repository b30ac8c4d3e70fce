"""What releases of Megatron with MindSpeed hold in memory, and switches that a layout does not have.

Repositories: github.com/NVIDIA/Megatron-LM, github.com/Ascend/MindSpeed and github.com/Ascend/MindSpeed-LLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Release:
    """What a release holds; the defaults are those of Megatron core 0.12.1 with MindSpeed of October 2025.

    ``logit``: bytes of a logit at the loss. Until MindSpeed 55859a22 (9 August 2025) its cross entropy
    (core/tensor_parallel/cross_entropy.py) subtracted the maximum into a new float32 tensor: bfloat16,
    float32, float32. It does so in place now.

    ``rotary_input``: the fused rotary embedding saves its input, as torch_npu.npu_rotary_mul does.
    MindSpeed's npu_rotary_position_embedding (ops/csrc/cann) saves the cosines and sines only.

    ``copies_update``: AdamW returns one weight beside the old one, in float32 (torch_npu.npu_apply_adam_w,
    until MindSpeed cbe43635 replaced it by torch._fused_adamw_).

    ``embedding``: bytes per element of the embedding's gradient while it is computed. CANN's
    aclnnEmbeddingDenseBackward made it in float32 and then in bfloat16; the open one
    (github.com/hicann/ops-nn) does so below 100 MB only.

    ``warm_up``: tensors of a sequence's feed-forward width that _warmup_jit_function (training/initialize.py)
    holds at once: until core 0.8 the input and two graphs of bias_gelu, each with seven saved tensors and
    its result, of whole sequences; since, for SwiGLU, the input and two graphs of bias_swiglu, each with one
    tensor, a half one and the result, another half, of the part of a sequence that a rank has.

    ``fills``: an interleaved pipeline with as many micro batches as stages runs all forward passes first
    (core/pipeline_parallel/schedules.py until 0.8).

    ``legacy``: Megatron without core (ModelLink, model/transformer.py): every layer has a mask of its own, a
    byte for each pair of tokens; grouped keys and values are repeated for all heads; the fused rotary
    embedding takes float32 cosines and sines, so that queries and keys are saved in float32, too.
    """

    logit: int = 6
    rotary_input: bool = False
    copies_update: bool = False
    embedding: int = 2
    warm_up: int = 5
    warms_whole_sequence: bool = False
    fills: bool = False
    legacy: bool = False


CURRENT = Release()
# And 0.6, with the software of 2024 and of the first half of 2025.
CORE_0_8 = Release(
    logit=10, copies_update=True, embedding=6, warm_up=17, warms_whole_sequence=True, fills=True
)
LEGACY = replace(CORE_0_8, rotary_input=True, legacy=True)
RELEASES: Mapping[str, Release] = {"mindspeed": CURRENT, "modellink": LEGACY}


@dataclass(frozen=True)
class LatentAttention:
    """Sizes of multi-head latent attention: of a head's rotary part, its value, both ranks, and of a head as
    flash attention is given it."""

    rotary: int
    value: int
    query_rank: int
    key_rank: int
    padded: int


@dataclass(frozen=True)
class Switches:
    """A run's switches, under the names of MindSpeed-LLM's arguments.

    ``half``: the type of weights, ``bf16`` or ``fp16``. ``reuses``: bfloat16 weights are part of the float32
    ones (--reuse-fp32-param). ``narrow_moments``: in bfloat16 (--o2-optimizer). ``swaps``: what
    self-attention saves goes to the host (--swap-attention), and the feed-forward layers of the first
    ``feed_forwards_again`` layers of a stage are computed again (--recompute-num-layers beside it).
    ``norms_again``: the layers of a chunk whose norms are computed again (--recompute-norm).
    ``repeats_keys``: context parallelism repeats grouped keys and values for all heads
    (--kv-head-repeat-before-uly-alltoall). ``normed_heads``: queries and keys are normed (--qk-layernorm).
    ``chunks``: model chunks of a stage, None for the layout's. ``empty``: positions of layers that do nothing
    (--noop-layers). ``tokens``: of a sample, None for the layout's length (--no-pad-to-seq-lengths).
    ``latent``: multi-head latent attention.
    """

    half: str = "bf16"
    reuses: bool = False
    narrow_moments: bool = False
    swaps: bool = False
    feed_forwards_again: int = 0
    norms_again: int = 0
    repeats_keys: bool = False
    normed_heads: bool = False
    chunks: int | None = None
    empty: frozenset[int] = frozenset()
    tokens: int | None = None
    latent: LatentAttention | None = None
