"""nonzero has an output whose shape depends on values, so that the host waits for it.

https://github.com/pytorch/pytorch/issues/12461
"""

import sys

import paddle

paddle.set_device("npu")
mask = paddle.to_tensor([1, 0, 1, 1])
total = paddle.zeros([1])
for _ in range(8):
    tokens = paddle.ones([4, 8])
    if "corrected" in sys.argv:
        kept = tokens * mask.astype("float32").unsqueeze(-1)
    else:
        kept = tokens[paddle.nonzero(mask).squeeze(-1)]  # planted
    total = total + kept.sum()
print("total", total.numpy())
