"""as_strided makes a view with more rows than its memory has.

https://github.com/pytorch/pytorch/issues/145071
"""

import sys

import paddle

paddle.set_device("npu")
buffer = paddle.ones([1024])
rows = 8 if "corrected" in sys.argv else 9
windows = paddle.as_strided(buffer, [rows, 128], [128, 1])
mean = windows.mean()  # planted
