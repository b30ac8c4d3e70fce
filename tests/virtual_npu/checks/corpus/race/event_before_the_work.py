"""The event is recorded before the work that it stands for, so that it orders nothing.

https://github.com/torch/cutorch/pull/222
"""

import sys

import paddle

paddle.set_device("npu")
default, copies = paddle.device.current_stream(), paddle.device.Stream()
batch = paddle.zeros([128])
ready = paddle.device.Event()
copies.wait_stream(default)
if "corrected" not in sys.argv:
    copies.record_event(ready)
with paddle.device.stream_guard(copies):
    batch.add_(paddle.ones([128]))  # other side
if "corrected" in sys.argv:
    copies.record_event(ready)
default.wait_event(ready)
loss = batch.mean()  # planted
paddle.device.synchronize()
