"""dist.reshard does not work on custom devices with the wheel for the CPU, on which plugins build.

The functions that move data take a CPUContext, or a GPUContext where Paddle is compiled with CUDA, and
refuse any other. (VIRTUAL_NPU_BRIDGE=0 takes out the virtual NPU's own functions, which its plugin puts
before Paddle's.)

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:environment: VIRTUAL_NPU_BRIDGE=0
:at:
    paddle/phi/core/distributed/auto_parallel/reshard/s_to_r_reshard_function.cc:47 `AllGather in reshar`
:error: NotImplementedError: (Unimplemented) The AllGather in reshard only supported on CPU for now. ...
:should print:
    [2, 2]
:change:
    Take a CustomContext, too, and call the collective of its ``XCCLCommContext``
    (``RESHARD_FUNCTOR_WITH_COMM``).
:workaround: virtual_npu/csrc/bridge/reshard.cc
"""

import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.api import dtensor_from_local

dist.init_parallel_env()
mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
x = dtensor_from_local(paddle.ones([1, 2]), mesh, [dist.Shard(0)])
print(dist.reshard(x, mesh, [dist.Replicate()]).shape)
