"""The effect of rounding alone on a step: the same model, rounded differently.

Two correct implementations of a model round in different places, and a rounding error grows from layer to
layer. The allowed difference is measured, not chosen: the model runs again with random errors of one unit in
the last place in the outputs of those layers that fused operators round differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import paddle

from paddle_fused.parity import ROUNDING

# Parts of the names of layers that may be fused, and of the projections around rotary and SwiGLU.
SITES = ("RMSNorm", "Attention", "MLP", "MoeBlock", "MoEBlock", "Linear")


@contextmanager
def other_roundings(model, seed: int) -> Iterator[None]:
    """Context in which outputs of these layers are multiplied by 1 - u, 1 or 1 + u, u a unit in the last
    place.

    The choice depends on ``seed``, the layer and the position; the run's generators are not used.
    """

    def disturb(number: int):
        draw = np.random.default_rng([seed, number])

        def after(_layer, _inputs, output):
            first = output[0] if isinstance(output, tuple) else output
            unit = 2 * ROUNDING[str(first.dtype).removeprefix("paddle.")]
            signs = draw.integers(-1, 2, first.shape, np.int8).astype(np.float32)
            moved = first * paddle.to_tensor(1 + unit * signs, place=first.place).astype(first.dtype)
            return (moved, *output[1:]) if isinstance(output, tuple) else moved

        return after

    sites = [layer for layer in model.sublayers() if any(site in type(layer).__name__ for site in SITES)]
    hooks = [layer.register_forward_post_hook(disturb(number)) for number, layer in enumerate(sites)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
