"""``--offload_activations``: the inputs of recomputed decoder layers in host memory from forward to backward.

A recomputed layer saves only its input. After the layer's forward pass the input is copied to host memory.
Its tensor then refers to the copy, which frees the device's memory. The backward pass recomputes the layer
from a copy on the device.

Paddle's recompute calls the layer with the saved tensor: the implementation by hooks (``use_reentrant``
false) with the tensor itself, the PyLayer with a detached copy, whose gradient becomes the input's.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping

import paddle
from paddle.autograd import PyLayer

from llm_npu.models import layout, lora

HOST = paddle.CPUPlace()
NAMES = ("recompute", "rr_recompute")  # in the modules of both libraries' models
NUMBER = re.compile(r"\.(?:layers|h)\.(\d+)\.")


class HostInputs:
    """Keeps the inputs of the decoder layers ``chosen``, by number, in host memory.

    Must be installed before surgery, which copies the layers' modules.
    """

    def __init__(self, model, chosen: range):
        self._chosen = chosen
        self._number: int | None = None  # of the decoder layer called last
        self._replaced: list[tuple[dict, str, Callable]] = []
        layers = decoder_layers(lora.unwrapped(model))
        for number, layer in layers.items():
            layer.register_forward_pre_hook(functools.partial(self._begin, number))
        kinds = {kind for layer in model.sublayers(include_self=True) for kind in type(layer).__mro__}
        for module in {kind.__module__ for kind in kinds}:
            scope = vars(sys.modules[module])
            for name in NAMES:
                if callable(upstream := scope.get(name)):
                    self._replaced.append((scope, name, upstream))
                    scope[name] = functools.partial(self._recompute, upstream)

    def remove(self) -> None:
        """Restore the modules of the model's classes."""
        for scope, name, upstream in self._replaced:
            scope[name] = upstream

    def _begin(self, number: int, layer, inputs) -> None:
        self._number = number

    def _recompute(self, upstream: Callable, function: Callable, *args, **kwargs):
        return upstream(self._moving(function), *args, **kwargs)

    def _moving(self, function: Callable) -> Callable:
        is_layer = isinstance(function, paddle.nn.Layer)

        @functools.wraps(function.forward if is_layer else function)  # Paddle reads the signature
        def call(*args, **kwargs):
            hidden = next(filter(_is_activation, args), None)
            if hidden is not None and hidden.place.is_cpu_place():
                return self._again(function, hidden, args, kwargs)
            if hidden is not None and (hidden.offset or not hidden.is_contiguous()):
                # A view of a larger buffer, such as a rank's rows; tensors saved by autograd keep its offset.
                _refer(hidden, hidden.detach().clone())
            outputs = function(*args, **kwargs)
            number, self._number = self._number, None
            if hidden is not None and number in self._chosen:
                _refer(hidden, hidden._copy_to(HOST, True))
            return outputs

        return call

    def _again(self, function: Callable, hidden, args, kwargs):
        """Run the layer for the backward pass, on a copy of its input on the device.

        The input itself stays in host memory: autograd keeps it until the end of the backward pass.
        """
        on_device = Upload.apply(hidden)
        return function(*(on_device if arg is hidden else arg for arg in args), **kwargs)


class Upload(PyLayer):
    """A copy on the device; its gradient becomes the gradient of the tensor in host memory."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor._copy_to(paddle.framework._current_expected_place(), True)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def _is_activation(value: object) -> bool:
    return isinstance(value, paddle.Tensor) and value.is_floating_point() and not value.stop_gradient


def _refer(tensor, other) -> None:
    """Make ``tensor`` refer to the memory of ``other``, with its offset."""
    tensor.get_tensor()._share_data_with(other.get_tensor())


def decoder_layers(model) -> Mapping[int, paddle.nn.Layer]:
    """The decoder layers of this process by their number in the whole model."""
    numbers = {
        id(parameter): int(match[1])
        for name, parameter in layout.parameters(model).items()
        if (match := NUMBER.search(name))
    }
    counts = Counter(numbers.values())
    layers: dict[int, paddle.nn.Layer] = {}
    for layer in model.sublayers():
        own = Counter(numbers.get(id(parameter)) for parameter in layer.parameters())
        number = next((number for number in own if number is not None), None)
        if number is not None and own[number] == counts[number]:
            layers[number] = layer  # containers precede the layers in them
    return layers
