"""Collectives with ReduceOp.AVG fail where Paddle is built without NCCL.

They ask for NCCL's version before they look at the group's backend. A build for the CPU or for a custom
device has no ``core.nccl_version``. With that name supplied, groups of custom devices refuse an average
("Must be Min | Max | Prod | Sum"), and ``reduce_scatter`` divides its output, which it is about to
overwrite, instead of its input.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddle/distributed/communication/all_reduce.py:74 `if op == ReduceOp.AVG and paddle.base.core`
    paddle/distributed/communication/reduce_scatter.py:90 `if op == ReduceOp.AVG and paddle.base.core`
    paddle/distributed/communication/reduce.py:192 `return paddle.base.core.nccl_version() >= 21000`
:error: AttributeError: module 'paddle.base.libpaddle' has no attribute 'nccl_version'...
:should print:
    [1.5, 1.5]
:change:
    Ask for NCCL's version only if the group's backend is NCCL. For all others divide the input by the
    number of ranks and sum, in ``reduce_scatter`` too.
:workaround: llm_npu.patches.devices.fix_average_without_nccl
"""

import paddle
import paddle.distributed as dist

dist.init_parallel_env()
x = paddle.full([2], float(dist.get_rank() + 1))
dist.all_reduce(x, op=dist.ReduceOp.AVG)
print(x.tolist())
