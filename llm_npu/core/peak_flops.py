"""The peak throughput of a device from ``--peak_tflops``, in teraFLOP/s.

Importing this file imports no framework.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from llm_npu.core.cards import peak_tflops, read
from llm_npu.core.errors import UserError

MEASURED = "measured"


@dataclass(frozen=True)
class PublishedPeak:
    """The peak of matrix products with float32 accumulation.

    Attributes:
        tflops: in bfloat16.
        source: the origin of ``tflops``.
        fp16: teraFLOP/s in float16; a card's two 16-bit formats may differ.
    """

    tflops: float
    source: str
    fp16: float


_PRESS = "Huawei, 23 August 2019, https://www.huawei.com/en/news/2019/8/huawei-ascend-910-most-powerful-ai-processor"
PEAKS: Mapping[str, PublishedPeak] = {
    "ascend910": PublishedPeak(256.0, _PRESS, 256.0),
    **{
        name: PublishedPeak(card["tflops"], card["tflops_source"], peak_tflops(card, "float16"))
        for name, card in read("cards.json")["cards"].items()
    },
}


def stated(text: str, dtype: str = "bfloat16") -> float | None:
    """Parse ``text``: a number, a card's name (its peak in ``dtype``), or ``measured`` (None).

    Raises:
        UserError: ``text`` is anything else.
    """
    if text == MEASURED:
        return None
    if text in PEAKS:
        return PEAKS[text].fp16 if dtype == "float16" else PEAKS[text].tflops
    try:
        tflops = float(text)
    except ValueError:
        nearest = difflib.get_close_matches(text.lower(), (*PEAKS, MEASURED), n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise UserError(
            f"--peak_tflops is {text}; accepted: a number, {MEASURED}, or one of {', '.join(PEAKS)}{hint}"
        ) from None
    if not (tflops > 0 and math.isfinite(tflops)):
        raise UserError(f"--peak_tflops is {text}, but must be greater than 0")
    return tflops
