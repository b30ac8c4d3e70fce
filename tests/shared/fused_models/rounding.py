"""The unfused model with other roundings where a fused operator rounds in another way."""

from __future__ import annotations

import numpy as np
import paddle
from precision import ROUNDING

# In the names of layers that may be fused, and of the projections between which rotary and SwiGLU round.
SITES = ("RMSNorm", "LayerNorm", "Attention", "MLP", "MoeBlock", "MoEBlock", "Linear")


def round_otherwise(model, seed: int) -> None:
    """From now on the results of the model's layers that may be fused are off by a unit in the last place."""
    random = np.random.default_rng(seed)  # not Paddle's, which a trainer sets to a seed of its own

    def disturb(_layer, _inputs, output):
        first = output[0] if isinstance(output, tuple) else output
        unit = 2 * ROUNDING[str(first.dtype).removeprefix("paddle.")]
        signs = paddle.to_tensor(random.integers(-1, 2, first.shape).astype("float32"))
        moved = first * (1 + unit * signs).astype(first.dtype)
        return (moved, *output[1:]) if isinstance(output, tuple) else moved

    for layer in model.sublayers():
        if any(site in type(layer).__name__ for site in SITES):
            layer.register_forward_post_hook(disturb)
