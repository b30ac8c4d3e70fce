"""Linear layers with a split backward pass, for pipeline schedules without bubbles.

    y = x W,    dx = dy W^T,    dW = x^T dy

Another stage waits for dx, none for dW. Where the schedule asks for it, dW is computed later, while the stage
would wait (arXiv 2401.10241).
"""

from __future__ import annotations

import functools

import paddle
from paddle.autograd import PyLayer

from llm_npu.surgery import swap
from llm_npu.surgery.registry import Replacement

PURPOSE = "split backward"


def apply(model) -> int:
    """Split the backward pass of the linear layers of ``model``; returns their number.

    Not split: layers with a bias, tensor-parallel layers and the head.
    """
    layers = [layer for layer in model.sublayers() if type(layer) is paddle.nn.Linear and layer.bias is None]
    for layer in layers:
        swap.install(layer, {PURPOSE: Replacement(forward=_forward)}, PURPOSE)
    return len(layers)


def _forward(self, input):
    return _Product.apply(input, self)


class _Product(PyLayer):
    @staticmethod
    def forward(ctx, x, layer):
        y = paddle.nn.functional.linear(x, layer.weight)
        ctx.save_for_backward(x if x.dtype == y.dtype else x.astype(y.dtype))  # as auto_cast cast it
        ctx.layer, ctx.dtype = layer, x.dtype
        return y

    @staticmethod
    def backward(ctx, dy):
        from paddle.distributed.fleet.meta_parallel.zero_bubble_utils import WeightGradStore, grad_weight_fn

        (x,), weight = ctx.saved_tensor(), ctx.layer.weight
        add_weight_gradient = functools.partial(grad_weight_fn, x, weight, dy)
        if WeightGradStore.enabled:
            WeightGradStore.put(add_weight_gradient)
        else:
            add_weight_gradient()
        if weight.dtype != dy.dtype:
            weight = weight.astype(dy.dtype)
        dx = paddle.matmul(dy, weight, transpose_y=True)
        return dx if dx.dtype == ctx.dtype else dx.astype(ctx.dtype)
