"""Whole sequences (documents or conversations) packed into rows of bounded length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from llm_npu.core.errors import UserError

IGNORED = -100  # PaddleNLP's criterion ignores these labels


class Sequences(Protocol):
    """Token sequences of known lengths: ``lengths`` and ``labelled`` (number of labels that are not -100),
    int64 [n]."""

    lengths: np.ndarray
    labelled: np.ndarray

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """``input_ids`` and ``labels`` of sequence ``number``, int64 [length]."""
        ...


class Rows:
    """Samples of whole sequences: row i concatenates the sequences in ``plan[i]``.

    Item i is {"input_ids": int64 [T], "labels": int64 [T], "seqlens": int64 [sequences of the row]}.
    """

    def __init__(self, sequences: Sequences, plan: Sequence[Sequence[int]]):
        self._sequences = sequences
        self._plan = plan
        # : number of tokens in all rows
        self.tokens = int(sequences.lengths.sum())

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        row = [self._sequences.read(number) for number in self._plan[index]]
        return {
            "input_ids": np.concatenate([input_ids for input_ids, _ in row]),
            "labels": np.concatenate([labels for _, labels in row]),
            "seqlens": np.array([len(input_ids) for input_ids, _ in row]),
        }

    def labelled(self, index: int) -> int:
        """The number of labels of sample ``index`` that are not -100."""
        return int(self._sequences.labelled[self._plan[index]].sum())


def check_ids(tokens: np.ndarray, vocab_size: int) -> None:
    """ValueError if an id lies outside 0 ... ``vocab_size`` - 1."""
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < vocab_size):
        wrong = int(tokens.max()) if tokens.max() >= vocab_size else int(tokens.min())
        raise UserError(
            f"the data contain token id {wrong}, but the model's vocabulary has ids 0 to "
            f"{vocab_size - 1}; they were made with another tokenizer"
        )
