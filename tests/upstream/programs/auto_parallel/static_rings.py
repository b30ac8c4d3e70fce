"""A program of dist.to_static on a custom device fails while its rings are made.

``ProcessGroup.instantiate`` makes the communicator in an ``XCCLParallelContext``, which nothing reads
any more, and then calls ``_legacy_C_ops.barrier``, which finds no communicator in
``CommContextManager``: an error on the virtual NPU, which checks it; Paddle's own kernels read the null
pointer. CUDA and XPU take another branch.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddle/distributed/auto_parallel/static/process_group.py:201 `core.XCCLParallelContext(strategy`
    paddle/distributed/auto_parallel/static/process_group.py:225 `paddle._legacy_C_ops.barrier(`
:prints:
    building
:error: RuntimeError: (Unavailable) This collective has no communicator: ...
:should print:
    building
    8.0
:change:
    As for CUDA: ``CommContextManager.set_device_id`` and ``create_xccl_comm_context(store, str(ring_id),
    place, rank, nranks, hash)``, without the barrier, for making an xccl communicator waits for all its
    processes. And, in line 240, ``paddle.distributed.barrier()``.
:workaround:
    llm_npu.patches.auto_parallel.fix_xccl_ring_creation,
    llm_npu.patches.auto_parallel.fix_program_barrier
"""

import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec

dist.init_parallel_env()
mesh = dist.ProcessMesh([0, 1], dim_names=["x"])


class Scaled(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        weight = self.create_parameter([2], default_initializer=paddle.nn.initializer.Constant(1.0))
        self.weight = dist.shard_tensor(weight, mesh, [dist.Replicate()])

    def forward(self, x):
        return x * self.weight


layer = Scaled()
x = dist.shard_tensor(paddle.ones([4, 2]), mesh, [dist.Shard(0)])
optimizer = dist.shard_optimizer(paddle.optimizer.SGD(0.1, parameters=layer.parameters()))
specs = [[DistributedInputSpec.from_dtensor(x, name)] for name in ("x", "label")]
print("building", flush=True)
program = dist.to_static(layer, None, lambda y, label: y.sum(), optimizer, input_spec=specs)
program.train()
print(float(program(x, x)))
