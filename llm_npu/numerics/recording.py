"""Outputs and gradients of all layers in a step, as host arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import numpy as np
import paddle

from llm_npu.training.nonfinite import gradient_of

from .dumped import GRADIENT, OUTPUT, WEIGHT


class Recording(dict[str, np.ndarray]):
    """{name: array} in recording order; bfloat16 is stored as uint16, as in Paddle's ``numpy()``.

    output/llama.layers.0.mlp                    the layer's output
    output/llama.layers.0[1]                     the second of several output tensors
    output/llama.layers.0.mlp (call 2)           a second call: recompute, or another batch
    gradient/llama.layers.0.mlp                  gradient of the loss with respect to that output
    weight gradient/llama.norm.weight            gradient with respect to a parameter
    """

    def add(self, name: str, tensor: paddle.Tensor) -> None:
        """Store a copy of ``tensor``. Its partial gradients must already be accumulated."""
        self[name] = tensor.detach().numpy()

    def add_weight_gradients(self, model) -> None:
        """Record the current gradients of the parameters of ``model`` in this process."""
        for name, parameter in model.named_parameters():
            gradient = gradient_of(parameter)
            if gradient is not None and gradient._is_initialized():
                self.add(f"{WEIGHT}/{name}", gradient)


@contextmanager
def recording(model) -> Iterator[Recording]:
    """Context that records the outputs of the layers of ``model`` and their gradients."""
    recorded, calls = Recording(), {}

    def keep(name: str, gradient) -> None:
        recorded.add(f"{GRADIENT}/{name}", gradient)

    def record(path: str):
        def after(_layer, _inputs, output):
            calls[path] = calls.get(path, 0) + 1
            again = f" (call {calls[path]})" if calls[path] > 1 else ""
            for number, tensor in enumerate(floats(output)):
                name = f"{path}[{number}]{again}" if number else f"{path}{again}"
                recorded.add(f"{OUTPUT}/{name}", tensor)
                if not tensor.stop_gradient:
                    tensor.register_hook(partial(keep, name))

        return after

    hooks = [
        layer.register_forward_post_hook(record(path)) for path, layer in model.named_sublayers() if path
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def floats(output) -> list[paddle.Tensor]:
    """The floating-point tensors among a layer's inputs or outputs."""
    if isinstance(output, paddle.Tensor):
        return [output] if output.is_floating_point() and output._is_initialized() else []
    if isinstance(output, Mapping):
        output = output.values()
    elif not isinstance(output, (tuple, list)):
        return []
    return [tensor for item in output for tensor in floats(item)]
