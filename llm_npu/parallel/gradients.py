"""The gradients of an optimizer step in dygraph: added up over micro batches, then over processes."""

from __future__ import annotations

import paddle
import paddle.distributed as dist


class Sums:
    """Adds up the gradients of several backward passes.

    Paddle 3.3 does so itself, but not for DistTensors on a custom device ("DistTensor doesn't support custom
    device"). Here every process adds its parts.
    """

    def __init__(self, model):
        self._parameters = model.parameters()
        self._sums: dict[int, tuple[paddle.Tensor, list]] = {}

    @paddle.no_grad()
    def add(self) -> None:
        """Takes the parameters' gradients."""
        for number, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            if gradient is None or not gradient._is_initialized():
                continue
            part = gradient._local_value()
            if number in self._sums:
                self._sums[number][0].add_(part)
            else:  # a copy: clearing a gradient frees its memory
                self._sums[number] = part.clone(), _copied(gradient.placements)
            parameter.grad = None

    def give_back(self) -> None:
        """Makes the sums the parameters' gradients."""
        for number, (part, placed) in self._sums.items():
            mesh = self._parameters[number].process_mesh
            self._parameters[number].grad = dist.auto_parallel.api.dtensor_from_local(part, mesh, placed)
        self._sums.clear()


def _copied(placements: list) -> list:
    """Those of a tensor live no longer than it does."""

    def copied(one):
        if one.is_partial():
            return dist.Partial()
        return dist.Shard(one.get_dim()) if one.is_shard() else dist.Replicate()

    return [copied(one) for one in placements]


def reduce(model) -> None:
    """Sums each gradient over the processes, once: clipping and the optimizer would each do so again.

    Sharding takes each process's part of the sum. A program does this by itself.
    """
    for parameter in model.parameters():
        gradient = parameter.grad
        if gradient is None or not any(placement.is_partial() for placement in gradient.placements):
            continue
        total = dist.reshard(gradient, parameter.process_mesh, parameter.placements)
        gradient.get_tensor()._share_data_with(total.get_tensor())
