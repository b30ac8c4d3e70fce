"""A pipeline program of dist.to_static fails on a custom device as soon as a stage sends something.

The executor calls a plugin's ``send_v2`` and ``recv_v2`` without the attributes that kernels of these
names read, those of the old program representation. With that mended, parts of the schedule 1F1B wait
for each other's events, for which custom devices have no waiter ("event_waiter_[1][6] shall not be
nullptr"). The two workarounds at the top are those of the report about the rings of a program, which
fails before.

:versions: paddlepaddle 3.3.1
:device: npu, 2 processes
:at:
    paddle/distributed/auto_parallel/static/reshard_funcs/same_status_reshard_func.py:100 `paddle._C_ops`
    paddle/distributed/passes/pipeline_scheduler_pass/pipeline_pass_base.py:118 `def _add_dependency`
:error: ...Attribute 0 cast error in Op Kernel Context...
:should print:
    0.0
:change:
    Add ``send_v2`` and ``recv_v2``, or ``p_send`` and ``p_recv``, kernels for all custom devices over
    ``XCCLCommContext::Send`` and ``Recv``, and register event waiters between custom devices.
:workaround: llm_npu.patches.auto_parallel.fix_pipeline_transfers
"""

import paddle
import paddle.distributed as dist
from paddle.distributed.auto_parallel.static.dist_input_spec import DistributedInputSpec

from llm_npu.patches.auto_parallel import fix_program_barrier, fix_xccl_ring_creation

fix_xccl_ring_creation()
fix_program_barrier()
dist.init_parallel_env()
meshes = [dist.ProcessMesh([rank], dim_names=["x"]) for rank in (0, 1)]


class Staged(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        ones = paddle.nn.initializer.Constant(1.0)
        for name, mesh in zip("ab", meshes, strict=True):
            weight = self.create_parameter([1], default_initializer=ones)
            setattr(self, name, dist.shard_tensor(weight, mesh, [dist.Replicate()]))

    def forward(self, x, _):
        return (dist.reshard(x * self.a, meshes[1], [dist.Replicate()]) * self.b).mean()


layer = Staged()
optimizer = dist.shard_optimizer(paddle.optimizer.SGD(1.0, parameters=layer.parameters()))
x, y = (dist.shard_tensor(paddle.ones([4, 2]), mesh, [dist.Replicate()]) for mesh in meshes)
inputs = [
    DistributedInputSpec([2, 2], name=name, mesh=mesh, placements=[dist.Replicate()])
    for name, mesh in (("x", meshes[0]), ("y", meshes[1]))
]
labels = [DistributedInputSpec([2, 2], name="label", mesh=meshes[1], placements=[dist.Replicate()])]
strategy = dist.Strategy({"pipeline": {"enable": True, "accumulate_steps": 2, "pp_degree": 2}})
program = dist.to_static(layer, None, lambda loss, _: loss, optimizer, strategy, input_spec=[inputs, labels])
program.train()
program(x, y, y)
print(float(program.state_dict("param")["ab"[dist.get_rank()]]._local_value()))
