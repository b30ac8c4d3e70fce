"""DeepSeek-V3 fails at the second token of a generation with a cache.

``apply_rotary_pos_emb`` drops all dimensions of length 1 from the tables, also the sequence's when it
has one token.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/transformers/deepseek_v3/modeling.py:238 `cos = cos.squeeze().contiguous()  # [seq_len`
:error: ValueError: (InvalidArgument) Broadcast dimension mismatch...
:should print:
    [2, 1, 2, 64]
:change: Drop the dimensions that the caller inserted, by index, instead of all of length 1.
:workaround: none
"""

import sys
import types

import paddle

# without which the module cannot be imported where there is no CUDA
fleet_ops = types.ModuleType("paddlefleet_ops")
fleet_ops.is_deep_ep_available = lambda: False
sys.modules["paddlefleet_ops"] = fleet_ops

from paddleformers.transformers.deepseek_v3.modeling import apply_rotary_pos_emb  # noqa: E402

query = paddle.ones([2, 1, 2, 64])  # two sequences, one new token each
table = paddle.ones([2, 1, 1, 64])
print(apply_rotary_pos_emb(query, query, table, table, paddle.zeros([2, 1], "int64"))[0].shape)
