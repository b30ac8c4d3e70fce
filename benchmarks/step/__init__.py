"""A training step of a Llama: the same weights, tokens and arithmetic in Paddle and in torch."""

from .size import LlamaSize
from .training import AdamWSettings, Training

__all__ = ["AdamWSettings", "LlamaSize", "Training"]
