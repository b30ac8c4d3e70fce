"""Patches for defects in pipelines, sharding and sequences split over ranks."""

from __future__ import annotations

import functools
import inspect

import paddle


def apply() -> None:
    """Apply all of them."""
    fix_interleaved_pipeline_order()
    fix_shared_weight_norm()
    fix_split_param_gradients()
    fix_split_weight_norm()
    fix_unused_weights_in_stage_2()


@functools.cache
def fix_interleaved_pipeline_order() -> None:
    """Paddle 3.3: an interleaved pipeline (``virtual_pp_degree``) hangs on custom devices.

    ``_batched_p2p_ops`` issues up to four transfers as one group, in arbitrary order. Custom devices have no
    grouping: ``ProcessGroupCustom`` inherits a no-op ``StartCoalescing``, and the plugin's
    ``xccl_group_start`` and ``xccl_group_end`` are no-ops. The transfers therefore run sequentially on the
    compute stream, and each stage of the ring receives from the previous stage before it sends to the next.

    On a card, HcclSend blocks the stream until the data are received, so every pipeline deadlocks this way
    unless ``PADDLE_P2P_SYNC_SEND`` is set. An interleaved pipeline deadlocks even with this variable. With
    the patch the stages alternate, as in Paddle's ``_p2p_ops``: even stages send first, odd stages receive
    first, and transfers to the next stage precede transfers to the previous stage.
    """
    from paddle.distributed.fleet.meta_parallel.pp_utils import p2p_communication

    batched = p2p_communication._batched_p2p_ops

    def _batched_p2p_ops(tensor_send_prev, tensor_recv_prev, tensor_send_next, tensor_recv_next, hcg):
        down = [(None, None, tensor_send_next, None), (None, tensor_recv_prev, None, None)]
        up = [(tensor_send_prev, None, None, None), (None, None, None, tensor_recv_next)]
        turn = 1 if hcg.get_stage_id() % 2 == 0 else -1
        for transfer in (*down[::turn], *up[::turn]):
            batched(*transfer, hcg)

    p2p_communication._batched_p2p_ops = _batched_p2p_ops


@functools.cache
def fix_shared_weight_norm() -> None:
    """Paddle 3.3: a pipeline with a tied embedding clips gradients by a norm that is too large.

    Each stage that shares a weight holds the sum of its gradients, and the norm should count it only in the
    first stage. Paddle looks up the parameter name in a list of layer attributes, finds no match, and counts
    the gradient in every stage. The patch looks up the attribute.
    """
    from paddle.distributed.fleet.meta_parallel import PipelineLayer

    upstream = PipelineLayer._synchronize_shared_weights

    @functools.wraps(upstream)
    def _synchronize_shared_weights(self):
        upstream(self)
        for shared in self.shared_comm.values():
            for attribute in shared["weight_attr"]:
                weight = getattr(shared["layer"], attribute)
                weight.is_firstly_shared = self.global_rank == min(shared["ranks"])

    PipelineLayer._synchronize_shared_weights = _synchronize_shared_weights


@functools.cache
def fix_split_param_gradients() -> None:
    """Paddle 3.3: sharding stage 1 with split_param silently stops learning after the first step.

    Gradients in the parameters' dtype (fp32, or without ``amp_master_grad``) are views of a buffer that is
    reduced between processes. ``clear_grad`` marks them as empty, autograd replaces them with new tensors,
    and the buffer is no longer updated. The patch zeroes the buffer, and thereby its views.
    """
    from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import dygraph_sharding_optimizer

    sharding = dygraph_sharding_optimizer.DygraphShardingOptimizerV2
    clear = sharding.clear_grad

    def clear_grad(self, set_to_zero=True):
        buffers = self._comm_buffer_list
        if self.sd_release_grads or self.pp_overlap or any(buffer.use_main_grad for buffer in buffers):
            clear(self, set_to_zero)
            return
        for buffer in buffers:
            buffer.grad_storage.zero_()

    sharding.clear_grad = clear_grad


@functools.cache
def fix_split_weight_norm() -> None:
    """Paddle 3.3: with tensor parallelism and ``sep_degree`` N, gradients are clipped by a norm that is too
    large: the part of split weights is multiplied by sqrt(N).

    Ranks of the group ``sep`` have the same weights and gradients. But the squares of split weights are
    summed over the group ``get_check_parallel_group``, which contains ``sep``. The patch makes the norm use
    its other branch, which sums over the tensor parallel and the pipeline group.
    """
    from paddle.distributed.fleet.meta_optimizers.dygraph_optimizer import hybrid_parallel_optimizer

    clip = hybrid_parallel_optimizer.HybridParallelClipGrad
    upstream = clip._global_norm

    @functools.wraps(upstream)
    def _global_norm(self, *squares):
        if self._hcg.get_sep_parallel_world_size() > 1:
            self.split_norm_comm = True
        return upstream(self, *squares)

    clip._global_norm = _global_norm


@functools.cache
def fix_segment_parallel_exchange() -> None:
    """PaddleNLP 3.0.0b4: ``sep_parallel_degree`` trains on uninitialized memory (NaN losses, or random ones).

    ``_reshard_qkv`` calls ``paddle.distributed.alltoall(inputs, outputs)``; Paddle 3 expects the outputs
    first, so the empty buffers are sent, and the inputs overwritten. The patch passes them in Paddle's order.
    """
    from paddlenlp.transformers import segment_parallel_utils

    if next(iter(inspect.signature(paddle.distributed.alltoall).parameters)) != "out_tensor_list":
        return

    class Distributed:
        """``paddle.distributed`` with PaddleNLP's order of arguments."""

        def __getattr__(self, name: str):
            return getattr(paddle.distributed, name)

        def alltoall(self, inputs, outputs, group=None):
            return paddle.distributed.alltoall(outputs, inputs, group=group)

    segment_parallel_utils.dist = Distributed()


@functools.cache
def fix_unused_weights_in_stage_2() -> None:
    """Paddle 3.0 to 3.3: sharding stage 2 silently trains weights with the gradients of one process, if a
    trainable weight without a gradient is stored with them.

    The gradients of a rank's weights are reduced as one buffer, once all have arrived. If a weight is not
    used, the buffer is never reduced. PaddleOCR-VL has such a weight: ``packing_position_embedding``. Before
    the optimizer's step, the patch marks the missing gradients as arrived; they are zeros in the buffer.
    """
    from paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage2 import GroupShardedStage2

    upstream = GroupShardedStage2._grad_scale

    @functools.wraps(upstream)
    def _grad_scale(self):
        for index, weight in enumerate(self._trainable_params):
            if self._grad_reduced[index] and self._use_grad_storage and self._has_grad_storage[index]:
                self._get_reduce_fn(index, weight, self._trainable_param2rank[weight.name])()
        if self._reduce_overlap:
            self._sharding_optimizers[0]._comm_task.wait()
        upstream(self)

    GroupShardedStage2._grad_scale = _grad_scale
