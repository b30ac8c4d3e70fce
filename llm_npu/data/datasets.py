"""The training, validation and test samples of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_npu.config import DataArguments

from .order import Samples
from .plans import PLANS
from .rows import Rows, Sequences

COMPARED = 256  # samples: a part of a second to read


@dataclass(frozen=True)
class Datasets:
    """The three parts of the data; a part that is not needed may be empty (length 0).

    ``notes`` report changes to the data that the user may not expect.
    """

    train: Samples
    valid: Samples
    test: Samples
    notes: tuple[str, ...] = ()

    def digest(self) -> str:
        """A SHA-256 of the sizes of the parts, and of up to ``COMPARED`` samples of each, evenly spread.

        Samples are hashed as they are read, whatever file or cache they come from.
        """
        digest = hashlib.sha256()
        for part in (self.train, self.valid, self.test):
            count = len(part)
            digest.update(f"{count} samples\n".encode())
            for number in np.linspace(0, count - 1, min(count, COMPARED), dtype=np.int64):
                for name, values in sorted(part[int(number)].items()):
                    digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
                    digest.update(np.ascontiguousarray(values).tobytes())
        return digest.hexdigest()


def packed(data: DataArguments, parts: Sequence[Sequences], what: str, kind: type[Rows] = Rows) -> Datasets:
    """Pack whole sequences into samples with ``data.packing``; ``what`` is their name in the note."""
    plan, length = PLANS[data.packing], data.max_seq_length
    rows = [kind(part, plan(part.lengths.tolist(), length)) for part in parts]
    train, sequences = rows[0], len(parts[0].lengths)
    filled = train.tokens / max(1, len(train) * length)
    note = f"{sequences:,} {what} in {len(train):,} samples, filled to {filled:.0%} of {length:,} tokens"
    return Datasets(*rows, notes=(note,))
