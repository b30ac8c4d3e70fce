"""The known name that a misspelt one is meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

WORD, WHOLE = 0.65, 0.9  # least similarity of a word, and of names with their words run together
LONGEST = 80  # characters; the comparison takes the product of both lengths


def name(given: str, known: Iterable[str]) -> str | None:
    """The nearest of ``known``, or None: a wrong hint costs more time than none.

    Names are near if every word of the shorter one is a misspelt word of the other; ``dataset_path`` is not
    ``model_path``. A part of a name, such as ``lora``, is near only where it is part of a single one.
    """
    if len(given) > LONGEST:
        return None
    given = given.replace("-", "_")
    known = list(known)
    if given.removeprefix("no_") in known:
        return given.removeprefix("no_")
    likely = [each for each in known if _joined(given, each) or _same_words(given, each)]
    if likely:
        return max(likely, key=lambda each: difflib.SequenceMatcher(None, given, each).ratio())
    holding = [each for each in known if set(given.split("_")) <= set(each.split("_"))]
    return holding[0] if len(holding) == 1 else None


def _joined(given: str, known: str) -> bool:
    """``inputdir`` and ``input_dir``."""
    one, other = given.replace("_", ""), known.replace("_", "")
    return difflib.SequenceMatcher(None, one, other).ratio() >= WHOLE


def _same_words(given: str, known: str) -> bool:
    """``lerning_rate`` and ``learning_rate``: as many words, each near its counterpart."""
    words, others = given.split("_"), known.split("_")
    return len(words) == len(others) and all(
        difflib.SequenceMatcher(None, *pair).ratio() >= WORD for pair in zip(words, others, strict=True)
    )
