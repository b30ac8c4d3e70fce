"""Marks the parts of a vision-language model in a profile: vision tower, projector and text.

A mark is an event of Paddle's profiler where a part begins: in the forward pass with the call of its layer,
in the backward pass with the gradient of the layer's output. It has no duration, because events of a thread
must nest, and the parts do not nest with the layers of the backward pass. A part lasts to the next mark or to
the end of the backward pass (``report.reading.timeline``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from llm_npu.core.errors import UserError
from llm_npu.models.paddleformers.vision_language import FAMILIES

if TYPE_CHECKING:
    import paddle

PREFIX = "part of the model: "  # of a mark's name; the end of a forward pass has no part


class Marks:
    """Marks the parts of ``model`` until ``remove()``. Raises ValueError for a model of another family."""

    def __init__(self, model: paddle.nn.Layer):
        layers = model.sublayers(include_self=True)
        names = {type(layer).__name__ for layer in layers}
        known = [family for family in FAMILIES.values() if family.parts]
        family = next((family for family in known if names.intersection(family.models)), None)
        if family is None:
            accepted = ", ".join(family.title for family in known)
            raise UserError(
                f"{type(model).__name__} has no parts that a profile distinguishes; accepted: models of "
                f"{accepted}. Omit model."
            )
        self._calls: list[str] = []  # the parts whose layers are being called, from the outermost
        self._hooks = []
        for layer in layers:
            if part := family.parts.get(type(layer).__name__):
                self._hooks += [
                    layer.register_forward_pre_hook(partial(self._before, part)),
                    layer.register_forward_post_hook(self._after),
                ]

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, part: str, *_) -> None:
        self._calls.append(part)
        _mark(part)

    def _after(self, layer, inputs, outputs) -> None:
        import paddle

        part = self._calls.pop()
        _mark(self._calls[-1] if self._calls else "")
        for value in paddle.utils.flatten(outputs):
            if isinstance(value, paddle.Tensor) and not value.stop_gradient:
                value.register_hook(partial(_mark, part))


def _mark(part: str, *_) -> None:
    from paddle.profiler import RecordEvent

    with RecordEvent(PREFIX + part):
        pass
