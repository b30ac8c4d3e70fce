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
