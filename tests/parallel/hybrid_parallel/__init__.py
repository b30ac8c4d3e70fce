"""PaddleNLP's Trainer on several ranks of the virtual NPU, by every method, against one process."""
