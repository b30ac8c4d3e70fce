"""Parameters are released with _clear_data while the stream of the prefetch still casts them.

https://github.com/pytorch/pytorch/pull/112195
"""

import sys

import paddle

paddle.set_device("npu")
default, prefetch = paddle.device.current_stream(), paddle.device.Stream()
weight = paddle.ones([64, 64])
prefetch.wait_stream(default)
with paddle.device.stream_guard(prefetch):
    half = weight.astype("bfloat16")  # other side
if "corrected" in sys.argv:
    prefetch.synchronize()
weight._clear_data()  # planted
following = paddle.zeros([64, 64])
paddle.device.synchronize()
