"""Layers, losses, optimizers and programs of them."""
