"""A cure for pipelines whose first and last stage have a weight in common: a tied embedding."""

from __future__ import annotations

import functools


@functools.cache
def shared_weights_count_once() -> None:
    """Paddle 3.3: a pipeline with a tied embedding clips its gradients by a norm that is too large.

    Stages that share a weight have the sum of its gradients each, and the norm should have it of the first
    one only. But Paddle looks for the weight under its parameter's name in a list of attributes of layers,
    and finds none, so that the square of its gradient counts in each stage. Here the attributes are looked
    up.
    """
    from paddle.distributed.fleet.meta_parallel import PipelineLayer

    stock = PipelineLayer._synchronize_shared_weights

    @functools.wraps(stock)
    def _synchronize_shared_weights(self):
        stock(self)
        for shared in self.shared_comm.values():
            for attribute in shared["weight_attr"]:
                weight = getattr(shared["layer"], attribute)
                weight.is_firstly_shared = self.global_rank == min(shared["ranks"])

    PipelineLayer._synchronize_shared_weights = _synchronize_shared_weights
