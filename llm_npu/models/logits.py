"""The default of ``--use_fused_linear_cross_entropy``: whether training computes the loss without logits.

It does if the float32 logits of a micro batch would take more than ``SHARE`` of the device's memory. Paddle
does not report a card's memory, so the trainer assumes ``CARD``.
"""

from __future__ import annotations

from fractions import Fraction

SHARE = Fraction(1, 32)
CARD = 64 << 30  # bytes: an Atlas 800T A2
RULE = f"1/{SHARE.denominator}"
WIDTH = 4  # bytes per logit


def size(tokens: int, vocabulary: int) -> int:
    """Bytes of the logits of ``tokens`` tokens, for a process's share of the ``vocabulary``."""
    return WIDTH * tokens * vocabulary


def are_large(tokens: int, vocabulary: int, memory: int = CARD) -> bool:
    """Whether the logits are large for a device with ``memory`` bytes."""
    return size(tokens, vocabulary) > memory * SHARE
