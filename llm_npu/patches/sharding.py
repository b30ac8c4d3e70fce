"""Patches for defects of sharding."""

from __future__ import annotations

import functools


def apply() -> None:
    """Apply them all."""
    fix_split_param_gradients()


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
