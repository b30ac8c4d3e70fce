"""The accumulator of the loss is created with paddle.empty, and the first addition reads it.

https://github.com/lucidrains/stylegan2-pytorch/pull/86
"""

import sys

import paddle

paddle.set_device("npu")
new = paddle.zeros if "corrected" in sys.argv else paddle.empty
total = new([1])  # other side
for loss in (2.5, 2.25):
    total = total + paddle.full([1], loss)  # planted
print("mean loss", float(total) / 2)
