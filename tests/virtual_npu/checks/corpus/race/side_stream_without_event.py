"""Work on a second stream reads clones that the default stream has not finished.

https://github.com/pytorch/pytorch/pull/197827
"""

import sys

import paddle

paddle.set_device("npu")
parameter = paddle.ones([64, 64])
copies = paddle.device.Stream()
shard = parameter * 2  # other side
if "corrected" in sys.argv:
    copies.wait_stream(paddle.device.current_stream())
with paddle.device.stream_guard(copies):
    packed = shard + 1  # planted
paddle.device.current_stream().wait_stream(copies)
