"""Feeds gradients into a graph as in training: from the next operator, without a copy."""

from __future__ import annotations

import paddle


class _End(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx, gradients, *outputs):
        ctx.gradients = gradients
        return paddle.zeros([1])

    @staticmethod
    def backward(ctx, of_end):
        return ctx.gradients()


def graph_end(outputs: list, gradients: list):
    """A scalar at the end of the graph of ``outputs``, whose backward pass produces their ``gradients``.

    paddle.grad and Tensor.backward would copy the gradients passed to them, on one thread.
    """
    return _End.apply(lambda: tuple(gradients), *outputs)  # a function: not inputs of the graph
