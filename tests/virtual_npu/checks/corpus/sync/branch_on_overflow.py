"""Python branches on a tensor that says whether a gradient overflowed.

https://github.com/NVIDIA/apex/issues/172
"""

import sys

import paddle

paddle.set_device("npu")
weight = paddle.ones([16])
for _ in range(8):
    gradient = weight * 0.1
    is_finite = paddle.isfinite(gradient).all()
    if "corrected" in sys.argv:
        weight = paddle.where(is_finite, weight - gradient, weight)
    elif is_finite:  # planted
        weight = weight - gradient
print("weight", weight.mean().numpy())
