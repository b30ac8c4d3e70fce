"""Patches for defects in layers."""

from __future__ import annotations

import functools

import paddle

from paddle_fused import paddle_release


def apply() -> None:
    """Apply the patches that the installed version needs; idempotent."""
    if paddle_release.before(3, 1):
        fix_sequence_parallel_split_axis()


@functools.cache
def fix_gemma_rotary_dtype() -> None:
    """PaddleNLP's Gemma computes rotary angles from a buffer that mixed precision casts.

    With AMP O2 in bfloat16, ``GemmaRotaryEmbedding.forward`` multiplies float32 positions by bfloat16
    frequencies and fails with "The type of data we are trying to retrieve (float32) does not match the type
    of data (bfloat16)" (``paddlenlp/transformers/gemma/modeling.py``). The patch keeps both in float32.
    """
    from paddlenlp.transformers.gemma import modeling

    def forward(self, x, seq_len=None):
        with paddle.amp.auto_cast(False):
            powers = paddle.arange(0, self.dim, 2, dtype="float32") / self.dim
            angles = paddle.arange(seq_len, dtype="float32").unsqueeze(1) / self.base**powers
            angles = paddle.concat([angles, angles], axis=-1)[None, :, None, :]
            return angles.cos().astype(x.dtype), angles.sin().astype(x.dtype)

    modeling.GemmaRotaryEmbedding.forward = forward


@functools.cache
def fix_means_of_no_losses() -> None:
    """PaddleNLP's Mistral, Mixtral, Gemma and GPT: the loss is NaN if no label has a loss above 0.

    Their criteria average only losses above 0. There are none if all labels are ignored, or if the model has
    learned them so well that the losses round to 0 in float32. The NaN ends the training. The patch returns
    0, as Qwen2's criterion does.
    """
    from paddlenlp.transformers.gemma.modeling import GemmaPretrainingCriterion
    from paddlenlp.transformers.gpt.modeling import GPTPretrainingCriterion
    from paddlenlp.transformers.mistral.modeling import MistralPretrainingCriterion
    from paddlenlp.transformers.mixtral.modeling import MixtralPretrainingCriterion
    from paddlenlp.transformers.qwen2.modeling import Qwen2PretrainingCriterion

    for kind in (MistralPretrainingCriterion, MixtralPretrainingCriterion, GemmaPretrainingCriterion):
        kind.forward = Qwen2PretrainingCriterion.forward

    def forward(self, prediction_scores, masked_lm_labels, loss_mask=None):
        with paddle.amp.auto_cast(False):
            losses = self.loss_func(prediction_scores.astype("float32"), masked_lm_labels.unsqueeze(2))
            losses = losses.flatten()
            counted = (losses > 0).astype("float32") if loss_mask is None else loss_mask.flatten()
            count = counted.sum()
            return (losses * counted).sum() / (count + (count == 0).astype("float32"))

    GPTPretrainingCriterion.forward = forward


@functools.cache
def fix_sequence_parallel_split_axis() -> None:
    """Paddle 3.0: weights of sequence-parallel layers do not record the dimension along which they are split.

    Tensor-parallel layers record it in ``split_axis``, and checkpoints without a mesh need it
    ("'EagerParamBase' object has no attribute 'split_axis'").
    """
    from paddle.distributed.fleet.utils import sequence_parallel_utils as layers

    for kind, weight_axis in (
        (layers.ColumnSequenceParallelLinear, 1),
        (layers.RowSequenceParallelLinear, 0),
    ):
        kind.__init__ = _with_split_axis(kind.__init__, weight_axis)


def _with_split_axis(build, weight_axis: int):
    @functools.wraps(build)
    def __init__(self, *arguments, **named):
        build(self, *arguments, **named)
        if self.weight.is_distributed:
            self.weight.split_axis = weight_axis
        if self.bias is not None and self.bias.is_distributed:
            self.bias.split_axis = 0

    return __init__
