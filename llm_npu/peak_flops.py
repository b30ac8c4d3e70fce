"""The peak of a device that ``--peak_tflops`` states, in 1e12 floating-point operations a second.

Importing this file imports no framework.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

MEASURED = "measured"


@dataclass(frozen=True)
class Card:
    """``tflops``: of 16-bit matrix products with float32 sums, as ``source`` gives it."""

    tflops: float
    source: str


_PRESS = "Huawei, 23 August 2019, https://www.huawei.com/en/news/2019/8/huawei-ascend-910-most-powerful-ai-processor"
_SKILLS = (
    "op-mfu-calculator of https://github.com/kali20gakki/mindstudio-skills, commit "
    "266c7821de7b51b683d4605960d0d86f7d631e03"
)
CARDS: Mapping[str, Card] = {
    "ascend910": Card(256.0, _PRESS),
    "ascend910b1": Card(378.88, _SKILLS),
    "ascend910b2": Card(353.89, _SKILLS),
    "ascend910b3": Card(294.91, _SKILLS),
    "ascend910b4": Card(270.0, _SKILLS),
}


def stated(text: str) -> float | None:
    """The peak that ``text`` states: a number, a card's name, or None for ``measured``.

    ValueError for anything else.
    """
    if text == MEASURED:
        return None
    if text in CARDS:
        return CARDS[text].tflops
    try:
        tflops = float(text)
    except ValueError:
        nearest = difflib.get_close_matches(text.lower(), (*CARDS, MEASURED), n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ValueError(
            f"--peak_tflops is {text}: give a number, {MEASURED}, or one of {', '.join(CARDS)}{hint}"
        ) from None
    if not (tflops > 0 and math.isfinite(tflops)):
        raise ValueError(f"--peak_tflops is {text}, but must be above 0")
    return tflops
