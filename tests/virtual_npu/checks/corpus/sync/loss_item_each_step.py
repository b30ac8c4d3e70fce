"""The loss is read with item() in each step, so that the host waits for the device in each step.

https://github.com/meta-pytorch/torchtune/pull/522
"""

import sys

import paddle

paddle.set_device("npu")
layer = paddle.nn.Linear(16, 4)
optimizer = paddle.optimizer.SGD(0.1, parameters=layer.parameters())
losses = []
for _ in range(8):
    loss = layer(paddle.ones([2, 16])).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    if "corrected" in sys.argv:
        losses.append(loss.detach())
    else:
        losses.append(loss.item())  # planted
print("losses", paddle.stack(losses).numpy() if "corrected" in sys.argv else losses)
