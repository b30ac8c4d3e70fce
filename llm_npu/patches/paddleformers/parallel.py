"""Patches for PaddleFormers' models with pipeline and tensor parallelism."""

from __future__ import annotations

import functools

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet
from paddle.distributed.fleet.utils.sequence_parallel_utils import is_sequence_parallel_parameter

# The default of other families' configurations and of PaddleFormers' own command.
DECODER_LAYERS = "layer:DecoderLayer|EmptyLayer"


@functools.cache
def fix_ernie_stages() -> None:
    """PaddleFormers 1.1 and 1.2: a dense ERNIE-4.5 cannot be split into pipeline stages ("weight_idxs' length
    should be greater than 0").

    Its configuration makes Paddle count layers named ``Ernie4_5DecoderLayer``, but the layers of every family
    are named ``DecoderLayerPipe``. The patch uses the default of other families and keeps an explicit
    ``pp_seg_method``.
    """
    from paddleformers.transformers.ernie4_5.configuration import Ernie4_5Config

    build = Ernie4_5Config.__init__

    @functools.wraps(build)
    def __init__(self, *arguments, **named):
        build(self, *arguments, **{"pp_seg_method": DECODER_LAYERS} | named)

    Ernie4_5Config.__init__ = __init__


@functools.cache
def fix_deepseek_stage_labels() -> None:
    """PaddleFormers 1.1 and 1.2: the last pipeline stage of a DeepSeek-V3 fails at its loss ("The 'shape' in
    ReshapeOp is invalid") if a batch has no loss mask.

    ``DeepseekV3PretrainingCriterionPipe`` unpacks the first of (labels, mask). Without a mask, labels are a
    single tensor, and the first element is a row. The patch passes such labels unchanged.
    """
    from paddleformers.transformers.deepseek_v3 import modeling

    criterion = modeling.DeepseekV3PretrainingCriterionPipe
    upstream = criterion.forward

    @functools.wraps(upstream)
    def forward(self, logits, labels):
        return upstream(self, logits, labels if isinstance(labels, (tuple, list)) else (labels,))

    criterion.forward = forward


@functools.cache
def fix_norms_of_heads() -> None:
    """PaddleFormers 1.1 and 1.2: under tensor parallelism, Qwen3, Qwen3-MoE and Qwen3-VL train the query and
    key norms with each process's local heads only, so the processes' weights diverge.

    Each process has the gradient of its local heads. The trainer sums the gradients of marked parameters only
    with sequence parallelism, and Qwen3-VL does not mark them. The patch sums the others in the backward
    pass.
    """
    from paddleformers.transformers.qwen3.modeling import Qwen3Attention
    from paddleformers.transformers.qwen3_moe.modeling import Qwen3MoeAttention
    from paddleformers.transformers.qwen3_vl.modeling import Qwen3VLTextAttention

    for kind in (Qwen3Attention, Qwen3MoeAttention, Qwen3VLTextAttention):
        kind.__init__ = _sums_norms_of_heads(kind.__init__)


def _sums_norms_of_heads(build):
    @functools.wraps(build)
    def __init__(self, *arguments, **named):
        build(self, *arguments, **named)
        if self.config.tensor_model_parallel_size > 1:
            for norm in (self.q_norm, self.k_norm):
                if not (self.config.sequence_parallel and is_sequence_parallel_parameter(norm.weight)):
                    norm.weight.register_hook(_summed)

    return __init__


@paddle.no_grad()
def _summed(gradient):
    """Sum ``gradient`` in-place over the processes that share a layer.

    In-place, because if a hook returns another tensor, Paddle's hook for float32 gradients leaves one in
    ``grad``.
    """
    dist.all_reduce(gradient, group=fleet.get_hybrid_communicate_group().get_model_parallel_group())


@functools.cache
def fix_qwen3_moe_last_norm() -> None:
    """PaddleFormers 1.1 and 1.2: under sequence parallelism, Qwen3-MoE trains its final norm with each
    process's local tokens only, so the processes' weights diverge.

    The patch marks the norm as a parameter whose gradients the trainer sums, as in other families.
    """
    from paddleformers.transformers.qwen3_moe.modeling import Qwen3MoeModel

    build = Qwen3MoeModel.__init__

    @functools.wraps(build)
    def __init__(self, *arguments, **named):
        build(self, *arguments, **named)
        if self.config.sequence_parallel:
            self.norm.enable_sequence_parallel()

    Qwen3MoeModel.__init__ = __init__


@functools.cache
def fix_lora_of_row_parallel_layers() -> None:
    """PaddleFormers 1.1 and 1.2: under tensor parallelism over N ranks, LoRA's matrices A of row-parallel
    layers start sqrt(N) times too large.

    The initializer's bound is 1 / sqrt(rows), and a rank's matrix has 1 / N of the rows. The patch scales the
    matrix to the bound of all rows. The ranks still draw other random numbers than one process.
    """
    from paddleformers.peft.lora import lora_layers

    for layer in (lora_layers.RowParallelLoRALinear, lora_layers.RowSequenceParallelLoRALinear):
        layer.__init__ = _with_bound_of_all_rows(layer.__init__)


def _with_bound_of_all_rows(build):
    @functools.wraps(build)
    def __init__(self, in_features, *arguments, **named):
        build(self, in_features, *arguments, **named)
        with paddle.no_grad():
            self.lora_A.set_value(self.lora_A * (self.lora_A.shape[0] / in_features) ** 0.5)

    return __init__
