"""The positions of dropped tokens are not written, and a gather uses them.

https://github.com/pytorch/pytorch/issues/42797
"""

import sys

import paddle

paddle.set_device("npu")
table = paddle.arange(40.0).reshape([10, 4])
positions = paddle.empty([6], dtype="int64")  # other side
positions[:4] = paddle.arange(4)
if "corrected" in sys.argv:
    positions[4:] = 0
rows = paddle.gather(table, positions)  # planted
print(rows.sum().numpy())
