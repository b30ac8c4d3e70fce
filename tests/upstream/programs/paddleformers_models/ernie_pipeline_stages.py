"""A dense ERNIE-4.5 cannot be cut into pipeline stages.

Its configuration tells Paddle to count the layers named "Ernie4_5DecoderLayer", but
``make_decoder_layer_pipe`` names the layers of every family "DecoderLayerPipe". GPT-OSS has such a default,
too. The training commands of PaddleFormers set another ``pp_seg_method``, and do not see it.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/ernie4_5/configuration.py:59 `pp_seg_method="layer:Ernie4_5DecoderLayer|Empt`
    paddleformers/nn/pp_model.py:491 `"DecoderLayerPipe",`
:error: AssertionError: weight_idxs' length should be greater than 0
:should print:
    [0, 1, 2]
:change:
    Name the class after its base, ``f"{decoder_layer.__name__}Pipe"``: "DecoderLayer" and
    "Ernie4_5DecoderLayer" both find it.
:workaround: llm_npu.patches.paddleformers.parallel.fix_ernie_stages
"""

from paddle.distributed.fleet.meta_parallel import LayerDesc
from paddle.distributed.fleet.meta_parallel.parallel_layers.pp_layers import SegmentLayers
from paddleformers.nn.pp_model import make_decoder_layer_pipe
from paddleformers.transformers import Ernie4_5Config
from paddleformers.transformers.ernie4_5.modeling import Ernie4_5DecoderLayer

layers = [LayerDesc(make_decoder_layer_pipe(Ernie4_5DecoderLayer)) for _ in range(2)]
print(SegmentLayers(layers, 2, Ernie4_5Config().pp_seg_method).do_segment())
