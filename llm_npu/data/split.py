"""The boundaries of the training, validation and test parts of the stream."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from llm_npu.config.conflicts import split_weights
from llm_npu.core.errors import UserError

from .text.json_lines import JsonLines

PARTS = ("training", "validation", "test")


def boundaries(
    ends: np.ndarray, split: str, length: int, needed: tuple[bool, bool, bool], name: str
) -> list[int]:
    """The four positions in the stream that delimit the three parts.

    ``ends`` [documents] are the document ends in the stream and ``split`` the weights (949,50,1). Whole
    documents are assigned to the parts by PaddleNLP's rule. If there are too few to give every ``needed``
    part one sample of ``length`` tokens, the stream is cut by the weights instead, inside documents.
    ValueError if that is too little as well; ``name`` is the name of the data in the message.
    """
    from llm_npu.models.library import data_tools

    weights = split_weights(split)
    # With very few documents, PaddleNLP's rounding can fall below 0.
    counts = [max(0, count) for count in data_tools.documents_of_parts(split, len(ends))]
    by_document = [int(ends[count - 1]) if count else 0 for count in counts]
    if not _lacking(by_document, length, needed):
        return by_document
    total = int(ends[-1])
    by_token = [0, *(round(total * float(sum(weights[: part + 1]))) for part in range(2)), total]
    for part in _lacking(by_token, length, needed):
        tokens = by_token[part + 1] - by_token[part]
        refuse_short(part, f"{tokens} of {total} tokens (--split {split})", length, name)
    return by_token


def refuse_short(part: int, tokens: str, length: int, name: str) -> NoReturn:
    """Raise the UserError for a part with fewer ``tokens`` than one sample has."""
    other = ", or --do_eval false" if part == 1 else ""
    raise UserError(
        f"the {PARTS[part]} part of {name} has {tokens}, fewer than the {length + 1} of one sample; give "
        f"more text, a smaller --max_seq_length or another --split{other}"
    )


def _lacking(limits: list[int], length: int, needed: tuple[bool, bool, bool]) -> list[int]:
    return [part for part in range(3) if needed[part] and limits[part + 1] - limits[part] <= length]


def counts(total: int, split: str, needed: tuple[bool, bool, bool], source: JsonLines) -> list[int]:
    """As `boundaries`, as indices of the ``total`` conversations (or pairs) of ``source`` in their order."""
    weights = split_weights(split)
    limits = [0, *(round(total * float(sum(weights[: part + 1]))) for part in range(2)), total]
    for part in range(3):
        if needed[part] and limits[part] == limits[part + 1]:
            raise UserError(
                f"the {PARTS[part]} part of {source.name} has none of its {total} {source.content} "
                f"(--split {split}); "
                "give more, or another --split" + (", or --do_eval false" if part == 1 else "")
            )
    return limits


def file_parts(
    source: JsonLines,
    tokenised: Callable[[JsonLines], Path],
    count: Callable[[Path], int],
    split: str,
    needed: tuple[bool, bool, bool],
) -> list[tuple[JsonLines, Path, int, int]]:
    """The lines, their ``tokenised`` folder, start and stop of each part of ``source``.

    Parts that the names of files assign are whole; the lines of the others are split as by `counts`.
    ``count`` returns the number of conversations (or pairs) in a folder.
    """
    train, *held_out = source.parts()
    folder = tokenised(train)
    weights, lacking = without_named(split, needed, held_out)
    limits = counts(count(folder), weights, lacking, source)
    found = [(train, folder, *limit) for limit in itertools.pairwise(limits)]
    for part, lines in enumerate(held_out, start=1):
        if lines is not None:
            other = tokenised(lines)
            found[part] = (lines, other, 0, count(other))
    return found


def without_named(
    split: str, needed: tuple[bool, bool, bool], held_out: Sequence[object | None]
) -> tuple[str, tuple[bool, bool, bool]]:
    """``split`` and ``needed`` for the training source; ``held_out``: the validation and the test source.

    With a source for validation, nothing of the training source is held out; with one for tests, no tests.
    """
    valid, test = (source is not None for source in held_out)
    train, *weights = split_weights(split)
    if valid:
        weights = [0.0, 0.0]
    elif test:
        weights[1] = 0.0
    kept = needed[0], needed[1] and not valid, needed[2] and not test
    return (",".join(map(str, (train, *weights))) if valid or test else split), kept
