"""A PyLayer for operators that raises an error where Paddle would crash or omit a derivative."""

from __future__ import annotations

import weakref

import paddle
from paddle.autograd import PyLayer

from ..ascend import refuse_second_derivative


class OperatorLayer(PyLayer):
    """A PyLayer without second derivatives, through which ``backward`` may run once.

    Saved tensors must keep their values, as Paddle checks for its own operators.

    Paddle 3.0 to 3.3: a node of a PyLayer frees its context after it has run, even with
    ``retain_graph=True``, and reads it the next time, so a second ``backward`` is a segmentation fault. Here
    it raises an error. ``paddle.grad`` runs copies of the nodes, any number of times. After a ``backward`` it
    still crashes while it copies them, before any code of this class runs (docs/upstream_defects.md).
    """

    _context: weakref.ref  # of the last call of ``forward``

    def __init_subclass__(cls):
        forward, backward = cls.forward, cls.backward

        def kept(ctx, *arguments):
            outputs = forward(ctx, *arguments)
            OperatorLayer._context = weakref.ref(ctx)
            ctx.versions = [tensor.inplace_version for tensor in ctx.saved_tensor() or ()]
            return outputs

        def first_derivatives(ctx, *gradients):
            if paddle.is_grad_enabled():  # only with create_graph=True
                refuse_second_derivative(cls.operator)
            if ctx.versions != [tensor.inplace_version for tensor in ctx.saved_tensor() or ()]:
                raise ValueError(
                    f"{cls.operator}: an input was changed in place after the forward pass; accepted: the "
                    "values of the forward pass, which give the gradients. Clone the tensor before."
                )
            return backward(ctx, *gradients)

        cls.forward, cls.backward = staticmethod(kept), staticmethod(first_derivatives)

    operator = ""  # in messages

    @classmethod
    def apply(cls, *arguments):
        outputs = super().apply(*arguments)
        first = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        if not first.stop_gradient:
            context, operator = OperatorLayer._context, cls.operator

            def refuse_to_run_again(_gradient):  # runs before the node itself, which would read its context
                if context() is None:
                    raise ValueError(
                        f"{operator}: backward runs a second time; accepted: once, even with "
                        "retain_graph=True. paddle.grad with retain_graph=True gives gradients again."
                    )

            first.register_hook(refuse_to_run_again)
        return outputs
