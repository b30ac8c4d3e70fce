"""Tokens return from local experts into a buffer of new_empty; rows of other ranks' tokens are never written.

https://github.com/PrimeIntellect-ai/prime-rl/pull/2035
"""

import sys

import paddle

paddle.set_device("npu")
local = paddle.to_tensor([0, 2, 3])
outputs = paddle.ones([3, 8])
new = paddle.zeros if "corrected" in sys.argv else paddle.empty
tokens = new([5, 8])  # other side
tokens[local] = outputs
residual = paddle.ones([5, 8])
hidden = residual + tokens  # planted
print("hidden", hidden.mean().numpy())
