"""Mixtures of experts: feed-forward layers, PaddleFormers' blocks, and experts spread over processes."""
