"""The accuracy is counted in NumPy: each step copies the predictions to the host.

https://github.com/NeuracoreAI/neuracore/pull/893
"""

import sys

import paddle

paddle.set_device("npu")
layer, labels = paddle.nn.Linear(16, 4), paddle.to_tensor([0, 1])
on_device, on_host = paddle.zeros([1]), 0
for _ in range(8):
    correct = layer(paddle.ones([2, 16])).argmax(axis=-1) == labels
    if "corrected" in sys.argv:
        on_device = on_device + correct.astype("float32").sum()
    else:
        on_host += correct.numpy().sum()  # planted
print("correct", float(on_device) + on_host)
