"""Whether a training computes its loss without logits, unless ``--use_fused_linear_cross_entropy`` says it.

It does where the logits of a micro batch in float32 would take more than ``SHARE`` of a device's memory.
Paddle does not report the memory of a card, so the trainer takes it to be ``CARD``.
"""

from __future__ import annotations

from fractions import Fraction

SHARE = Fraction(1, 32)
CARD = 64 << 30  # bytes: an Atlas 800T A2
RULE = f"1/{SHARE.denominator}"
WIDTH = 4  # bytes of a logit


def size(tokens: int, vocabulary: int) -> int:
    """Bytes of the logits of ``tokens`` tokens and a process's share of the ``vocabulary``."""
    return WIDTH * tokens * vocabulary


def are_large(tokens: int, vocabulary: int, memory: int = CARD) -> bool:
    """The rule, for a device with ``memory`` bytes."""
    return size(tokens, vocabulary) > memory * SHARE
