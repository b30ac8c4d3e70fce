"""The fused rotary embedding ignores position_ids on npu.

``fused_rope`` gets the tables of positions 0 to S - 1, whatever ``position_ids`` says. Packed rows,
whose documents begin at position 0 each, and left-padded ones get wrong rotations.

:versions: paddlenlp 3.0.0b4
:device: npu
:at:
    paddlenlp/transformers/llama/fusion_ops.py:78 `query_states = core.eager._run_custom_op("fused_rope"`
:prints:
    position_ids are read: False
:should print:
    position_ids are read: True
:change:
    Gather the tables by ``position_ids`` (``cos[:, position_ids]``) if they are given and not 0 to S -
    1.
:workaround: llm_npu/surgery/replacements/rotary.py, llm_npu/inference/generate.py
"""

import paddle
from paddlenlp.transformers.llama.fusion_ops import fusion_rope
from paddlenlp.transformers.llama.modeling import LlamaRotaryEmbedding

paddle.set_device("npu")
tables = LlamaRotaryEmbedding(64, max_position_embeddings=4)
query = paddle.ones([1, 4, 1, 64], "float16")


def rotated(positions):
    return fusion_rope(query, query, query, None, paddle.to_tensor([positions]), None, tables)[0]


increasing, other = rotated([0, 1, 2, 3]), rotated([0, 1, 0, 1])
print("position_ids are read:", bool((increasing != other).any()))
