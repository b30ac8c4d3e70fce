"""flashmask_attention exists for CUDA only, and on another device fails with a misleading error.

With row indices it asks for a flag that only CUDA builds define, before it calls anything; without them
it calls the kernel ``flash_attn``, which has no CPU and no composed form. PaddleFormers' attention calls
it by default. Before 3.2 row indices fail at that kernel, too.

:versions: paddlepaddle 3.2.2 to 3.3.1
:device: cpu
:at:
    paddle/nn/functional/flash_attention.py:1990 `and paddle.get_flags(["FLAGS_cudnn_deterministic"])[`
:error: ...FLAGS_cudnn_deterministic...
:should print:
    [1, 2, 1, 8]
:change:
    Ask for the flag only on CUDA, and compose the attention of plain operators where
    ``flashmask_attention`` has no kernel, as ``scaled_dot_product_attention`` does.
:workaround: llm_npu.patches.operators.fix_flashmask_attention
"""

import paddle
from paddle.nn.functional.flash_attention import flashmask_attention

query = paddle.ones([1, 2, 1, 8])
ends = paddle.full([1, 1, 2, 1], 2, "int32")  # both tokens are one document
print(flashmask_attention(query, query, query, ends, causal=True).shape)
