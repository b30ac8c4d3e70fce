"""A PyLayer for operators that raises an error where Paddle would crash or omit a derivative."""

from __future__ import annotations

import weakref

import paddle
from paddle.autograd import PyLayer

from ..ascend import refuse_second_derivative


class OperatorLayer(PyLayer):
    """A PyLayer without second derivatives whose ``backward`` can run only once.

    Saved tensors must keep their values; this is checked, as Paddle does for its own operators.

    In Paddle 3.0 to 3.3, the node of a PyLayer frees its context after it has run, even with
    ``retain_graph=True``, and reads it again the next time. A second ``backward`` is a segmentation fault;
    this class raises an error. ``paddle.grad`` runs copies of the nodes and can be repeated. After a
    ``backward``, it still crashes while copying the nodes, before this class is called
    (docs/upstream_defects.md).
    """

    _context: weakref.ref  # of the last call of ``forward``

    def __init_subclass__(cls):
        forward, backward = cls.forward, cls.backward

        # ``recompute`` packs saved tensors: they cannot be read in the forward pass, and only once in the
        # backward pass, which repeats the forward pass.
        def kept(ctx, *arguments):
            saved, save = [], ctx.save_for_backward
            ctx.save_for_backward = lambda *tensors: (saved.extend(tensors), save(*tensors))
            outputs = forward(ctx, *arguments)
            del ctx.save_for_backward
            OperatorLayer._context = weakref.ref(ctx)
            ctx.versions = [tensor.inplace_version for tensor in saved]
            return outputs

        def first_derivatives(ctx, *gradients):
            if paddle.is_grad_enabled():  # only with create_graph=True
                refuse_second_derivative(cls.operator)
            saved = ctx.saved_tensor() or ()
            versions = zip(saved, ctx.versions, strict=True)
            if any(tensor.inplace_version > version for tensor, version in versions):
                raise ValueError(
                    f"{cls.operator}: an input was changed in place after the forward pass; accepted: the "
                    "unchanged values. Clone the tensor before changing it."
                )
            ctx.saved_tensor = lambda: saved
            try:
                return backward(ctx, *gradients)
            finally:
                del ctx.saved_tensor

        cls.forward, cls.backward = staticmethod(kept), staticmethod(first_derivatives)

    operator = ""  # in messages

    @classmethod
    def apply(cls, *arguments):
        outputs = super().apply(*arguments)
        first = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        if not first.stop_gradient:
            context, operator = OperatorLayer._context, cls.operator

            def refuse_to_run_again(_gradient):  # runs before the node, which would read its context
                if context() is None:
                    raise ValueError(
                        f"{operator}: backward ran a second time; accepted: once, even with "
                        "retain_graph=True. Use paddle.grad with retain_graph=True to repeat gradients."
                    )

            first.register_hook(refuse_to_run_again)
        return outputs
