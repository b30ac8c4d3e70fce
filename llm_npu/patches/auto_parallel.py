"""Patches for auto-parallel on custom devices: DistTensors, and the programs of ``dist.to_static``."""

from __future__ import annotations

import functools
import hashlib

import paddle
import paddle.distributed as dist
from paddle.base import core

import virtual_npu
from llm_npu.patches.program_kernels import on_custom_device, use_available_kernels
from paddle_fused import paddle_release


def apply() -> None:
    """Apply the patches that the installed version needs; idempotent."""
    fix_xccl_ring_creation()
    fix_program_barrier()
    fix_dist_tensor_values()
    fix_shard_to_partial()
    fix_group_and_ring_numbers()
    fix_clipping_of_merged_gradients()
    fix_pipeline_transfers()
    use_available_kernels()
    if paddle_release.before(3, 3):
        fix_sharded_master_weights()


@functools.cache
def fix_xccl_ring_creation() -> None:
    """Paddle 3.3: a program of ``dist.to_static`` on a custom device ends with a segmentation fault.

    ``ProcessGroup.instantiate`` creates a ring's communicator in an obsolete context, and the following
    barrier finds no communicator. The patch creates it where the executor looks for it, as for CUDA. It omits
    the barrier, because creating an xccl communicator already waits for all processes.
    """
    from paddle.distributed.auto_parallel.static import process_group

    upstream = process_group.ProcessGroup.instantiate

    def instantiate(self):
        environment = process_group._get_global_env()
        kind, device = environment.device_type, environment.device_id
        if kind not in core.get_all_custom_device_type():
            return upstream(self)
        if self._is_instantiate:
            return None
        if self.nranks >= 2 and environment.rank in self.ranks:
            ring = str(self.id)
            endpoints = "".join(environment.trainer_endpoints[rank] for rank in self.ranks)
            core.CommContextManager.set_device_id(device)
            place = core.Place()  # before Paddle 3.2, CustomPlace is not a subclass of Place
            place.set_place(core.CustomPlace(kind, device))
            try:
                core.CommContextManager.create_xccl_comm_context(
                    core.create_or_get_global_tcp_store(),
                    ring,
                    place,
                    self.local_rank(environment.rank),
                    self.nranks,
                    hashlib.md5(f"{endpoints}ring_id:{ring}".encode()).hexdigest(),
                )
            except RuntimeError as error:
                # Before Paddle 3.2, ring 0 (all processes) has the same communicator as dygraph's default
                # group.
                if ring != "0" or "AlreadyExists" not in str(error):
                    raise
            if virtual_npu.is_active():
                virtual_npu.prepare_ring(ring, device)
        self._is_instantiate = True
        return None

    process_group.ProcessGroup.instantiate = instantiate


@functools.cache
def fix_program_barrier() -> None:
    """Paddle 3.3: building a program on a custom device ends with a segmentation fault, after its rings.

    The last step is an older barrier of all processes, which finds no communicator on a custom device. The
    patch uses the barrier of ``paddle.distributed``.
    """
    upstream = paddle._legacy_C_ops.barrier

    def barrier(x, out, *attributes):
        if not x.place.is_custom_place():
            return upstream(x, out, *attributes)
        assert attributes == ("ring_id", 0), attributes
        dist.barrier()
        return out

    paddle._legacy_C_ops.barrier = barrier


@functools.cache
def fix_dist_tensor_values() -> None:
    """Paddle 3.3: ``numpy()``, ``item()`` and ``float()`` of a DistTensor on a custom device crash.

    They treat it as a dense tensor, which kills the process. The patch first gathers it, as on the CPU.
    Therefore all processes of its mesh must make the call.
    """
    upstream_numpy, upstream_item = paddle.Tensor.numpy, paddle.Tensor.item

    def whole(tensor):
        if tensor.is_dist() and tensor._is_initialized() and tensor.place.is_custom_place():
            return dist.unshard_dtensor(tensor)
        return tensor

    @functools.wraps(upstream_numpy)
    def numpy(self, *arguments):
        return upstream_numpy(whole(self), *arguments)

    @functools.wraps(upstream_item)
    def item(self, *position):
        return upstream_item(whole(self), *position)

    paddle.Tensor.numpy, paddle.Tensor.item = numpy, item


@functools.cache
def fix_shard_to_partial() -> None:
    """Paddle 3.3: ``dist.reshard`` from Shard to Partial works in dygraph but fails in static programs.

    The patch gathers the tensor in a program and converts it to partial terms, as dygraph does.
    """
    from paddle.distributed.auto_parallel.static.reshard_funcs import base_reshard_func as base
    from paddle.distributed.auto_parallel.static.reshard_funcs.r_to_p_reshard_func import RToPReshardFunction
    from paddle.distributed.auto_parallel.static.reshard_funcs.s_to_r_reshard_func import SToRReshardFunction

    pir = paddle.base.libpaddle.pir

    class SToPReshardFunction(base.ReshardFunction):
        def is_suitable(self, src_dist_attr, dst_dist_attr):
            mesh = src_dist_attr.process_mesh
            from_split = base.is_shard(src_dist_attr) and not base.is_partial(src_dist_attr)
            to_sum = base.is_partial(dst_dist_attr) and not base.is_shard(dst_dist_attr)
            return from_split and to_sum and mesh == dst_dist_attr.process_mesh and mesh.ndim == 1

        def reshard(self, src_dist_attr, dst_dist_attr, src_value, dst_type):
            whole = [-1] * len(src_dist_attr.dims_mapping)
            attribute = pir.create_tensor_dist_attribute(src_dist_attr.process_mesh, whole, {})
            kind = pir.cvt_to_dist_type(src_value.type(), attribute)
            value = SToRReshardFunction().reshard(src_dist_attr, attribute, src_value, kind)
            return RToPReshardFunction().reshard(attribute, dst_dist_attr, value, dst_type)

    base.register_reshard_func(SToPReshardFunction())


@functools.cache
def fix_group_and_ring_numbers() -> None:
    """Paddle 3.3: a group created after a program of ``dist.to_static`` may send to the wrong processes.

    Communicators are looked up by number, and a dygraph group and a program ring may have the same number.
    The patch gives a new group the next number that no ring uses.
    """
    from paddle.distributed import collective
    from paddle.distributed.auto_parallel.static import process_group

    upstream = collective._new_ring_id

    def number():
        candidate = upstream()
        while paddle.in_dynamic_mode() and candidate in process_group._g_process_group_map:
            candidate = upstream()
        return candidate

    collective._new_ring_id = number


@functools.cache
def fix_clipping_of_merged_gradients() -> None:
    """Paddle 3.3: programs with ``gradient_merge`` or ``pipeline`` train with gradients that are too small.

    The program sums the gradients of the micro batches, clips the sum by its norm, and divides it by their
    number after clipping. The patch divides before any other operator reads the sums.
    """
    from paddle.distributed.fleet.meta_optimizers.common import OpRole
    from paddle.distributed.passes import auto_parallel_gradient_merge

    def append(program, new_params_to_grads, k_steps):
        block = program.global_block()
        order = {op.id(): place for place, op in enumerate(block.ops)}
        for _, total in new_params_to_grads:
            readers = [op for op in total.all_used_ops() if op.op_role == int(OpRole.Optimize)]
            paddle.pir.set_insertion_point(min(readers, key=lambda op: order[op.id()]))
            divided = paddle._C_ops.scale_(total, 1.0 / k_steps, 0.0, False).get_defining_op()
            for op in (divided, divided.operand_source(1).get_defining_op()):
                op.op_role = int(OpRole.Optimize)
        paddle.pir.set_insertion_point_to_block_end(block)

    auto_parallel_gradient_merge._pir_append_scale_op = append


@functools.cache
def fix_sharded_master_weights() -> None:
    """Paddle 3.0 to 3.2: sharding stage 3 with another kind of sharding fails ("can't be shard twice").

    The weights and their float32 copies are already sharded, and Paddle shards the copies again. The patch
    leaves them unchanged, as Paddle 3.3 does.
    """
    dist.ShardingStage3.shard_master_weight = lambda self, param, master_weight: master_weight


@functools.cache
def fix_pipeline_transfers() -> None:
    """Paddle 3.3: a pipeline program fails on a custom device when a stage first sends a tensor.

    The executor calls ``send_v2`` and ``recv_v2`` as kernels built into Paddle, without the attributes that a
    plugin's kernel reads. The result is "Attribute 0 cast error in Op Kernel Context" or a segmentation
    fault. The patch replaces them with sums in the group of the two processes, because allreduce is the only
    kernel for custom devices that moves a tensor to another process unchanged.

    In addition, parts of the 1F1B schedule wait for each other's events, which custom devices do not have
    ("event_waiter_[1][6] shall not be nullptr"). The patch removes these waits, because their operators run
    in one stream.
    """
    from paddle.distributed.auto_parallel.static import engine
    from paddle.distributed.passes.pipeline_scheduler_pass.pipeline_pass_base import PipelinePassBase

    split = engine.pipeline_pass

    @functools.wraps(split)
    def pipeline_pass(*arguments):
        plan = split(*arguments)
        if on_custom_device():
            for job in plan.job_types():
                _add_to_zeros(plan.ir_program(job))
        return plan

    engine.pipeline_pass = pipeline_pass
    if paddle_release.before(3, 1):  # has no dependencies to remove
        return
    depend = PipelinePassBase._add_dependency

    def _add_dependency(self, *arguments):
        if not on_custom_device():
            depend(self, *arguments)

    PipelinePassBase._add_dependency = _add_dependency


def _add_to_zeros(program) -> None:
    """Send by summing: the receiving stage contributes zeros, the sending stage its tensor."""
    with paddle.static.program_guard(program):
        for op in program.global_block().ops:
            if op.name() not in ("pd_op.send_v2", "pd_op.recv_v2"):
                continue
            attributes = op.attrs()
            paddle.pir.set_insertion_point(op)
            if op.name() == "pd_op.send_v2":
                term = paddle.assign(paddle.cast(op.operand_source(0), "float32"))
                paddle._C_ops.all_reduce_(term, attributes["ring_id"], dist.ReduceOp.SUM)
            else:
                zeros = paddle.full(attributes["out_shape"], 0, "float32")
                total = paddle._C_ops.all_reduce_(zeros, attributes["ring_id"], dist.ReduceOp.SUM)
                op.result(0).replace_all_uses_with(paddle.cast(total, attributes["dtype"]))
            op.erase()
