"""PaddleFormers' models in pipeline stages."""

from __future__ import annotations

import functools

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
