"""Mixtures of experts: their feed-forward layers, PaddleFormers' blocks, and spread experts."""
