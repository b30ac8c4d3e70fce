"""Attention over a whole cache block adds minus infinity to unwritten slots, and NaN + (-inf) is NaN.

https://github.com/deepbeepmeep/Wan2GP/pull/1628
"""

import sys

import paddle

paddle.set_device("npu")
used, block = 3, 8
new = paddle.zeros if "corrected" in sys.argv else paddle.empty
keys = new([block, 16])  # other side
keys[:used] = paddle.ones([used, 16])
query = paddle.ones([1, 16])
bias = paddle.zeros([1, block])
bias[:, used:] = float("-inf")
scores = paddle.matmul(query, keys, transpose_y=True)  # planted
weights = paddle.nn.functional.softmax(scores + bias)
print("weights", weights.numpy())
