"""The training loop prints the loss of each step.

https://github.com/deepspeedai/DeepSpeed/pull/5135
"""

import sys

import paddle

paddle.set_device("npu")
layer = paddle.nn.Linear(16, 4)
interval = 8 if "corrected" in sys.argv else 1
for step in range(8):
    loss = layer(paddle.ones([2, 16])).mean()
    loss.backward()
    if step % interval == interval - 1:
        print("step", step, "loss", loss)  # planted
