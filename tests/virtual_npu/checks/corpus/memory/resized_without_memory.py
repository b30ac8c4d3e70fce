"""A buffer gets a larger shape for a longer batch, and keeps the memory of the old shape.

https://github.com/pytorch/pytorch/issues/195665
"""

import sys

import paddle

paddle.set_device("npu")
buffer = paddle.ones([1024])
length = 1024 if "corrected" in sys.argv else 2048
buffer.get_tensor()._set_dims([length])
scaled = buffer * 2  # planted
