"""What all contenders have in common: the optimizer's settings."""

from __future__ import annotations

from typing import NamedTuple


class AdamWSettings(NamedTuple):
    """AdamW on all weights, gradients clipped by their global norm."""

    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    epsilon: float = 1e-8
