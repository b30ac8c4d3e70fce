"""Overlapping windows of a signal: the stride of the last windows leads beyond the memory.

https://github.com/PaddlePaddle/Paddle/pull/79718
"""

import sys

import paddle

paddle.set_device("npu")
signal = paddle.ones([1024])
step = 64 if "corrected" in sys.argv else 128
windows = paddle.as_strided(signal, [15, 128], [step, 1])
energy = windows * windows  # planted
