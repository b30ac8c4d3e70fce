"""PaddleNLP's models: families, presets, weights in the stock layout, LoRA."""
