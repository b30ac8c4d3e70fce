"""Two asynchronous collectives of two groups are started, and the program waits for only one of them."""

import sys

import paddle
import paddle.distributed as dist

paddle.set_device("npu")
dist.init_parallel_env()
tensor_parallel, data_parallel = dist.new_group([0, 1]), dist.new_group([0, 1])
activation, gradient = paddle.ones([64]), paddle.ones([64])
of_gradient = dist.all_reduce(gradient, group=data_parallel, sync_op=False)  # other side
of_activation = dist.all_reduce(activation, group=tensor_parallel, sync_op=False)
if "corrected" in sys.argv:
    of_gradient.wait()
of_activation.wait()
norm = gradient.norm()  # planted
of_gradient.wait()
