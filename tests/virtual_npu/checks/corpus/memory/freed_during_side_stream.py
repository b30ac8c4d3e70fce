"""A copy stream reads an activation that the program deletes: its memory is reused before the copy has ended.

https://github.com/meta-pytorch/torchrec/pull/4231
"""

import sys

import paddle

paddle.set_device("npu")
default, copies = paddle.device.current_stream(), paddle.device.Stream()
activation = paddle.ones([1024])
copies.wait_stream(default)
with paddle.device.stream_guard(copies):
    offloaded = activation.clone()  # other side
if "corrected" in sys.argv:
    default.wait_stream(copies)
del activation  # planted
gradient = paddle.zeros([1024])
paddle.device.synchronize()
