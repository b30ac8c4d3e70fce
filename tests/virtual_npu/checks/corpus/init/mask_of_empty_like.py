"""A mask of booleans is created with empty, and only the rows with padding are set.

https://github.com/jmschrei/pomegranate/pull/1121
"""

import sys

import paddle

paddle.set_device("npu")
lengths = [4, 2]
new = paddle.zeros if "corrected" in sys.argv else paddle.empty
is_padding = new([2, 4], dtype="bool")  # other side
for row, length in enumerate(lengths):
    if length < 4:
        is_padding[row, length:] = True
        is_padding[row, :length] = False
scores = paddle.where(is_padding, paddle.full([2, 4], -1e9), paddle.ones([2, 4]))  # planted
print(scores.numpy())
