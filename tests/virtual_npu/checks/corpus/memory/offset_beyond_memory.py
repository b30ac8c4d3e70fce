"""The offset of a view counts rounded sizes, and the fused buffer was allocated without the rounding.

https://github.com/pytorch/pytorch/issues/145259
"""

import sys

import paddle

paddle.set_device("npu")
sizes = [512, 512]
fused = paddle.ones([sum(sizes)])
offset = 512 if "corrected" in sys.argv else 640
second = paddle.as_strided(fused, [512], [1], offset * 4)
gradient = second.clone()  # planted
