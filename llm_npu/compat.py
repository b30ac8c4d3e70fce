"""Cures for defects of stock Paddle and PaddleNLP, applied only where the defect is present."""


def apply() -> None:
    """Apply every cure whose defect is there."""
