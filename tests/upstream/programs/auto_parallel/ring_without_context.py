"""A communicator that Python makes has no device context, and the first collective of a program ends
with SIGSEGV.

The executor runs a ring's collectives in the context of its communicator. For NCCL and XPU the function
that makes the communicator makes that context, too. For custom devices it stays null, also after
``CommContextManager.set_device_id``, and ``ParseDeviceContext`` uses the null pointer. The program makes
its ring as CUDA does, which is proposed in the report about rings.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddle/phi/core/distributed/comm_context_manager.cc `CommContextManager::CreateXCCLCommContext`
    paddle/fluid/framework/new_executor/interpreter/interpreter_util.cc `ParseDeviceContext`
:prints:
    running
:ends: SIGSEGV
:should print:
    running
    8.0
:change:
    Make a CustomContext for ``place`` with its stream, allocators and generators in
    ``CreateXCCLCommContext``, and call ``SetDevContext``. And raise an error in ``ParseDeviceContext``
    if a communicator has no context.
:workaround:
    virtual_npu/csrc/phi_kernels/collectives/ring_context.cc,
    llm_npu.patches.auto_parallel.fix_xccl_ring_creation
"""

import paddle
import paddle.distributed as dist
from paddle.base import core
from paddle.distributed.auto_parallel.static import process_group
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec


def instantiate(group):
    rank, ring = dist.get_rank(), str(group.id)
    if group.nranks > 1 and not group._is_instantiate:
        place = core.Place()
        place.set_place(core.CustomPlace("npu", rank))
        core.CommContextManager.set_device_id(rank)
        store = core.create_or_get_global_tcp_store()
        core.CommContextManager.create_xccl_comm_context(store, ring, place, rank, group.nranks, ring)
    group._is_instantiate = True


process_group.ProcessGroup.instantiate = instantiate
paddle._legacy_C_ops.barrier = lambda x, out, *_: out
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
program = dist.to_static(layer, None, lambda y, label: y.sum(), optimizer, input_spec=specs)
program.train()
print("running", flush=True)
print(float(program(x, x)))
