"""The training, validation and test samples of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_npu.config import DataArguments

from .order import Samples
from .plans import PLANS
from .rows import Rows, Sequences


@dataclass(frozen=True)
class Datasets:
    """The three parts of the data; a part that is not needed may be empty (length 0).

    ``notes`` report changes to the data that the user may not expect.
    """

    train: Samples
    valid: Samples
    test: Samples
    notes: tuple[str, ...] = ()


def packed(data: DataArguments, parts: Sequence[Sequences], what: str, kind: type[Rows] = Rows) -> Datasets:
    """Pack whole sequences into samples with ``data.packing``; ``what`` is their name in the note."""
    plan, length = PLANS[data.packing], data.max_seq_length
    rows = [kind(part, plan(part.lengths.tolist(), length)) for part in parts]
    train, sequences = rows[0], len(parts[0].lengths)
    filled = train.tokens / max(1, len(train) * length)
    note = f"{sequences:,} {what} in {len(train):,} samples, filled to {filled:.0%} of {length:,} tokens"
    return Datasets(*rows, notes=(note,))
