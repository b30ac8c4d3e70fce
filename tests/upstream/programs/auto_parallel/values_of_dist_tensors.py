"""numpy(), item() and float() of a DistTensor on a custom device end the process with SIGSEGV.

The methods cast the tensor's implementation to a dense tensor for custom places, and handle DistTensors
for the CPU and CUDA only.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddle/fluid/pybind/eager_method.cc `tensor_method_numpy`
:prints:
    reading
:ends: SIGSEGV
:should print:
    reading
    8.0
:change:
    Convert a DistTensor to its replicated dense tensor (``ReshardToDense``-like path of the CPU branch)
    before the branch ``tensor.is_custom_device()``.
:workaround: llm_npu.patches.auto_parallel.fix_dist_tensor_values, paddle_fused/ops/attention/sharding.py
"""

import paddle
import paddle.distributed as dist

dist.init_parallel_env()
mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
x = dist.shard_tensor(paddle.ones([4, 2]), mesh, [dist.Shard(0)])
print("reading", flush=True)
print(float(dist.reshard(x, mesh, [dist.Replicate()]).sum()))
