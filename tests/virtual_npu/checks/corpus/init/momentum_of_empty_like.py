"""A hand-written optimizer creates its state with empty_like instead of zeros_like.

https://github.com/pytorch/pytorch/issues/1347
"""

import sys

import paddle

paddle.set_device("npu")
layer = paddle.nn.Linear(8, 4)
new = paddle.zeros_like if "corrected" in sys.argv else paddle.empty_like
velocities = [new(parameter) for parameter in layer.parameters()]  # other side
layer(paddle.ones([2, 8])).sum().backward()
with paddle.no_grad():
    for parameter, velocity in zip(layer.parameters(), velocities, strict=True):
        velocity.scale_(0.9)  # planted
        velocity.add_(parameter.grad)
        parameter.subtract_(0.1 * velocity)
