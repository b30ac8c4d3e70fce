"""Random weights as the configuration says. Importing it imports paddle."""

from __future__ import annotations

import paddle


def draw(model) -> None:
    """Draw every matrix of ``model`` from a normal distribution with ``initializer_range`` as its deviation.

    PaddleFormers 1.2 ignores that field: its matrices have the deviations of Xavier's rule, and the output
    layer a multiple of it, so a new model's loss begins above that of guessing.
    """
    normal = paddle.nn.initializer.Normal(0.0, model.config.initializer_range)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and name.endswith("weight"):
            normal(parameter)
