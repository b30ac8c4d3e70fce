"""Patches for defects of pipelines, of sharding and of sequences split over ranks."""

from __future__ import annotations

import functools


def apply() -> None:
    """Apply all of them."""
    fix_interleaved_pipeline_order()
    fix_shared_weight_norm()
    fix_split_param_gradients()
    fix_split_weight_norm()


@functools.cache
def fix_interleaved_pipeline_order() -> None:
    """Paddle 3.3: an interleaved pipeline (``virtual_pp_degree``) hangs on custom devices.

    ``_batched_p2p_ops`` issues up to four transfers as one group, in arbitrary order. But custom devices have
    no grouping: ``ProcessGroupCustom`` inherits a ``StartCoalescing`` that does nothing (as do the
    ``xccl_group_start`` and ``xccl_group_end`` of the card's plugin), and the transfers run on the compute
    stream, one after the other. Each stage of the ring then receives from the previous one before it sends to
    the next. On a card, where HcclSend blocks the stream until its data are received, every pipeline
    deadlocks this way unless ``PADDLE_P2P_SYNC_SEND`` is set, which does not help an interleaved one. With
    the patch the stages alternate, as in Paddle's own ``_p2p_ops``: the even ones send first, the odd ones
    receive first, and transfers to the next stage precede those back.
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
    """Paddle 3.3: a pipeline with a tied embedding clips its gradients by a norm that is too large.

    Stages that share a weight each have the sum of its gradients, and the norm should count only the first
    one. But Paddle looks up the weight by its parameter's name in a list of layer attributes, and finds none,
    so the square of its gradient counts in each stage. The patch looks up the attributes.
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
    """Paddle 3.3: sharding stage 1 with split_param silently stops learning after its first step.

    Gradients of the parameters' own dtype (fp32, or ``amp_master_grad`` off) are views of a buffer that is
    reduced between the processes. ``clear_grad`` marks them as empty for autograd, which then replaces them
    with new ones, and the buffer stays unchanged. The patch zeroes the buffer, and with it its views.
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
