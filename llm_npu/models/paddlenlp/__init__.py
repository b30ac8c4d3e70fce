"""PaddleNLP's models: families, presets, weights in the Hugging Face layout, LoRA."""

from .families import internlm2

__all__ = ["internlm2"]
