"""Gradients of an optimizer step: summed over micro batches, then over processes, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import paddle
import paddle.distributed as dist

from paddle_fused import paddle_release


class GradientSums:
    """Accumulates the gradients of several backward passes.

    Paddle 3.3 cannot accumulate DistTensors on a custom device ("DistTensor doesn't support custom device"),
    so every process accumulates its local shards here. Low-precision gradients are summed in float32.
    """

    def __init__(self, model):
        self._parameters = model.parameters()
        self._sums: dict[int, tuple[paddle.Tensor, list]] = {}

    @paddle.no_grad()
    def add(self) -> None:
        """Add the parameters' gradients to the sums, and clear them."""
        paddle_release.allow_float32_gradients(self._parameters)
        for number, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is None or not gradient._is_initialized():
                continue
            part = gradient._local_value().astype("float32")
            if number in self._sums:
                self._sums[number][0].add_(part)
            else:  # a copy: clearing a gradient frees its memory
                kept = part.clone() if gradient.dtype == part.dtype else part
                self._sums[number] = kept, _copied(gradient.placements)
            paddle_release.drop_gradient(parameter)

    def restore(self) -> None:
        """Write the accumulated gradients to each parameter's ``grad``."""
        for number, (part, placed) in self._sums.items():
            mesh = self._parameters[number].process_mesh
            self._parameters[number].grad = dist.auto_parallel.api.dtensor_from_local(part, mesh, placed)
        self._sums.clear()


def _copied(placements: list) -> list:
    """Copy placements, because a tensor's placements are freed with the tensor."""

    def copied(placement):
        if placement.is_partial():
            return dist.Partial()
        return dist.Shard(placement.get_dim()) if placement.is_shard() else dist.Replicate()

    return [copied(placement) for placement in placements]


def reduce(model) -> None:
    """All-reduce each gradient over the processes once; otherwise clipping and the optimizer both do it.

    With sharding, a process keeps its part of the sum. Static programs do not need this call.
    """
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is None or not any(placement.is_partial() for placement in gradient.placements):
            continue
        total = dist.reshard(gradient, parameter.process_mesh, parameter.placements)
        gradient.get_tensor()._share_data_with(total.get_tensor())


@contextmanager
def in_float32() -> Iterator[None]:
    """A context in which captured programs have float32 gradients, like ``GradientSums``.

    The cast precedes accumulation, clipping and the optimizer; Paddle's own option (``strategy.amp`` with
    ``use_master_grad``) casts after accumulation.
    """
    backward = paddle.autograd.ir_backward
    upstream = backward.append_backward

    def append_backward(*arguments, **options):
        return [(parameter, _cast(gradient)) for parameter, gradient in upstream(*arguments, **options)]

    backward.append_backward = append_backward
    try:
        yield
    finally:
        backward.append_backward = upstream


def _cast(gradient):
    low = gradient is not None and gradient.dtype != paddle.base.core.DataType.FLOAT32
    return gradient.astype("float32") if low else gradient
