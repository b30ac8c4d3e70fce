"""What the run asks for against what the model is: positions, head size, fused operators."""

from __future__ import annotations

from .arguments import RunConfig


def check_model(config: RunConfig, model_config) -> None:
    """ValueError when the ``LlamaConfig`` ``model_config`` cannot be trained as ``config`` asks."""
    raise NotImplementedError
