"""Generation with a cache and a sliding window attends to the wrong mask.

``DynamicSlidingWindowLayer`` returns the last keys of the text, and eager attention takes the first
columns of the mask for them. As soon as the text is longer than the window, all of these are hidden, and
every key has the same weight. Here the query may see the last of three keys, whose value is 3.

:versions: paddleformers 1.2.0
:device: cpu
:at:
    paddleformers/nn/attention/eager_attention.py:63 `attention_mask = attention_mask[:, :, :, : key`
    paddleformers/transformers/cache_utils.py:568 `self.keys = full_key_states[:, :, -self`
:prints:
    2.0
:should print:
    3.0
:change:
    ``attention_mask[:, :, :, -key.shape[-2] :]``, and make the mask with the sizes that the cache tells.
:workaround: none
"""

import paddle
from paddleformers.nn.attention.eager_attention import eager_attention_forward

hidden = paddle.full([1, 1, 1, 6], -1e9)
hidden[..., -1] = 0.0  # of six tokens the last one is seen, and the cache holds the last three
keys, values = paddle.ones([1, 1, 3, 1]), paddle.to_tensor([1.0, 2.0, 3.0]).reshape([1, 1, 3, 1])
layer = paddle.nn.Layer()
layer.eval()
out, _ = eager_attention_forward(layer, keys[:, :, :1], keys, values, hidden, scaling=1.0)
print(round(float(out), 3))
