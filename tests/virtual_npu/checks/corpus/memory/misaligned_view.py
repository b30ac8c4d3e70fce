"""A float64 part of a fused float32 buffer begins at an odd element: its address is not a multiple of 8.

https://github.com/pytorch/pytorch/issues/184714
"""

import sys

import paddle

paddle.set_device("npu")
fused = paddle.zeros([9])
begin = 0 if "corrected" in sys.argv else 1
part = fused[begin : begin + 8].view("int64")
total = part.sum()  # planted
