"""The pipelined Llama attends to the future on npu: its mask is inverted.

``flash_attention_npu``, as CANN's operators, takes a bool mask in which True is hidden. Without an
attention_mask, ``LlamaEmbeddingPipe`` hands down ``paddle.tril``, where True is to be seen: every token
sees the future and not the past, and the last one nothing. (With an attention_mask, and without a
pipeline, the mask is right.) Found by reading and on the virtual NPU, which has the operator's
interface; not run on a card.

:versions: paddlenlp 3.0.0b4
:device: npu
:at:
    paddlenlp/transformers/llama/modeling_pp.py:233 `attention_mask = paddle.tril(paddle.ones`
    paddlenlp/transformers/llama/fusion_ops.py:205 `"flash_attention_npu",`
:prints:
    the first of two tokens sees [0.0, 1.0]
:should print:
    the first of two tokens sees [1.0, 0.0]
:change:
    ``paddle.triu(paddle.ones(...), diagonal=1)``; better, pass None, for which
    ``fusion_flash_attention`` asks for a causal mask.
:workaround: llm_npu/surgery/replacements/attention.py
"""

import paddle
from paddlenlp.transformers import LlamaConfig
from paddlenlp.transformers.llama.modeling_pp import LlamaEmbeddingPipe, parse_args

paddle.set_device("npu")
layer = LlamaEmbeddingPipe(LlamaConfig(hidden_size=8, vocab_size=8, num_attention_heads=1))
_, mask, *_ = parse_args(layer(paddle.to_tensor([[1, 2]])))
query, value = paddle.zeros([1, 2, 1, 64], "bfloat16"), paddle.zeros([1, 2, 1, 64], "bfloat16")
value[0, 0, 0, 0] = value[0, 1, 0, 1] = 1.0  # so the output shows the weights
arguments = (None, mask, None, None, 0.0, False, True, False, False, False)
out = paddle.base.core.eager._run_custom_op("flash_attention_npu", query, query, value, *arguments)[0]
print("the first of two tokens sees", out[0, 0, 0, :2].astype("float32").tolist())
