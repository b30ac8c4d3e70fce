"""PaddleFormers' models in pipeline stages and under tensor parallelism."""

from __future__ import annotations

import functools

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet

# What the configurations of other families mean, and what PaddleFormers' own command sets.
DECODER_LAYERS = "layer:DecoderLayer|EmptyLayer"


@functools.cache
def fix_ernie_stages() -> None:
    """PaddleFormers 1.1 and 1.2: a dense ERNIE-4.5 cannot be cut into pipeline stages ("weight_idxs' length
    should be greater than 0").

    Its configuration tells Paddle to count layers named ``Ernie4_5DecoderLayer``, and the layers of every
    family are named ``DecoderLayerPipe`` there. With the patch the default is that of other families; a
    ``pp_seg_method`` of the caller is kept.
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

    ``DeepseekV3PretrainingCriterionPipe`` takes the first of labels and mask. Labels without a mask come
    alone, and their first is a row. With the patch they are taken as they are.
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
    """PaddleFormers 1.1 and 1.2: under tensor parallelism a Qwen3 and a Qwen3-MoE train the norms of queries
    and keys by the heads of each process alone, so the processes' weights drift apart.

    Each process has the gradient of its own heads, and the trainer sums those of the parameters marked for it
    with sequence parallelism only. Without it, the patch sums them in the backward pass.
    """
    from paddleformers.transformers.qwen3.modeling import Qwen3Attention
    from paddleformers.transformers.qwen3_moe.modeling import Qwen3MoeAttention

    for kind in (Qwen3Attention, Qwen3MoeAttention):
        kind.__init__ = _sums_norms_of_heads(kind.__init__)


def _sums_norms_of_heads(build):
    @functools.wraps(build)
    def __init__(self, *arguments, **named):
        build(self, *arguments, **named)
        if self.tensor_parallel and not self.config.sequence_parallel:
            for norm in (self.q_norm, self.k_norm):
                norm.weight.register_hook(_summed)

    return __init__


@paddle.no_grad()
def _summed(gradient):
    """Makes ``gradient`` the sum of those of the processes that share a layer.

    In place: after a hook that returns another tensor, Paddle's for float32 gradients leaves one in ``grad``.
    """
    dist.all_reduce(gradient, group=fleet.get_hybrid_communicate_group().get_model_parallel_group())


@functools.cache
def fix_qwen3_moe_last_norm() -> None:
    """PaddleFormers 1.1 and 1.2: under sequence parallelism a Qwen3-MoE trains its last norm by the tokens of
    each process alone, so the processes' weights drift apart.

    Other families mark that norm as one whose gradients the trainer sums.
    """
    from paddleformers.transformers.qwen3_moe.modeling import Qwen3MoeModel

    build = Qwen3MoeModel.__init__

    @functools.wraps(build)
    def __init__(self, *arguments, **named):
        build(self, *arguments, **named)
        if self.config.sequence_parallel:
            self.norm.enable_sequence_parallel()

    Qwen3MoeModel.__init__ = __init__
