"""The peak throughput of a device from ``--peak_tflops``, in teraFLOP/s.

Importing this file imports no framework.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from llm_npu.core.cards import read
from llm_npu.core.errors import UserError

MEASURED = "measured"


@dataclass(frozen=True)
class PublishedPeak:
    """``tflops`` of 16-bit matrix products with float32 accumulation, according to ``source``."""

    tflops: float
    source: str


_PRESS = "Huawei, 23 August 2019, https://www.huawei.com/en/news/2019/8/huawei-ascend-910-most-powerful-ai-processor"
PEAKS: Mapping[str, PublishedPeak] = {
    "ascend910": PublishedPeak(256.0, _PRESS),
    **{
        name: PublishedPeak(card["tflops"], card["tflops_source"])
        for name, card in read("cards.json")["cards"].items()
    },
}


def stated(text: str) -> float | None:
    """Parse ``text``: a number, a card's name, or ``measured`` (None). Raises UserError for anything else."""
    if text == MEASURED:
        return None
    if text in PEAKS:
        return PEAKS[text].tflops
    try:
        tflops = float(text)
    except ValueError:
        nearest = difflib.get_close_matches(text.lower(), (*PEAKS, MEASURED), n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise UserError(
            f"--peak_tflops is {text}: give a number, {MEASURED}, or one of {', '.join(PEAKS)}{hint}"
        ) from None
    if not (tflops > 0 and math.isfinite(tflops)):
        raise UserError(f"--peak_tflops is {text}, but must be greater than 0")
    return tflops
