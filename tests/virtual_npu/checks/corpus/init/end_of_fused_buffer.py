"""A fused gradient buffer is rounded up to a multiple of the block, and the norm covers its unwritten end.

https://github.com/pytorch/FBGEMM/pull/5754
"""

import sys

import paddle

paddle.set_device("npu")
gradients = [paddle.ones([30]), paddle.ones([20])]
block = 64
new = paddle.zeros if "corrected" in sys.argv else paddle.empty
buffer = new([block])  # other side
buffer[:30] = gradients[0]
buffer[30:50] = gradients[1]
norm = buffer.square().sum()  # planted
print("norm", float(norm.sqrt()))
