"""Gemma in mixed precision fails in its rotary embedding.

``inv_freq`` is a buffer, which ``paddle.amp.decorate`` and ``Layer.to`` cast; the positions stay float32.

:versions: paddlenlp 3.0.0b4 with paddlepaddle 3.3.1
:device: cpu
:at:
    paddlenlp/transformers/gemma/modeling.py:390 `freqs = paddle.einsum("i,j->ij", t, self.inv_freq)`
:error: ValueError: (InvalidArgument) The type of data we are trying to retrieve (float32) does not match ...
:should print:
    [1, 2, 1, 8]
:change: keep ``inv_freq`` in float32, and compute the tables outside of auto_cast.
:workaround: llm_npu.patches.layers.fix_gemma_rotary_dtype
"""

import paddle
from paddlenlp.transformers.gemma.modeling import GemmaRotaryEmbedding

rotary = GemmaRotaryEmbedding(8)
rotary.to(dtype="bfloat16")
print(list(rotary(paddle.ones([1]), seq_len=2)[0].shape))
