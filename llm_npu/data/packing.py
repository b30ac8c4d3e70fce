"""Packs token streams and whole sequences into samples with a bounded number of tokens.

With T the sample length and s the token stream of a split (training, validation or test), sample i of
``--packing stream`` is

    input_ids = s[iT : iT + T]      labels = s[iT + 1 : iT + T + 1]

Consecutive samples share no input, and labels are shifted here: PaddleNLP's LlamaPretrainingCriterion
compares the logits at t with labels[t] without a shift.

The other packings keep sequences whole: a packing plan assigns sequences (documents, conversations or pairs)
to rows. A plan is a list of rows; a row lists the indices of sequences with a total length of at most
``capacity``. A plan depends on the lengths only, so all processes, and a resumed run, compute the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from llm_npu.core.errors import UserError

from .indexed import IndexedTokens, check_ids

IGNORED = -100  # PaddleNLP's criterion ignores these labels


class TokenStream:
    """All documents concatenated, each ending in exactly one end-of-text token ``eos``.

    ``eos`` is appended to documents that lack it, without copying the data. Empty documents are dropped.

    Attributes:
        ends: The end of each document in the stream, int64 [documents].
    """

    def __init__(self, source: IndexedTokens, eos: int):
        stops = source.ends
        starts = np.concatenate([[0], stops[:-1]])
        nonempty = stops > starts
        self._source = source
        self._eos = eos
        self._starts = starts[nonempty]
        self._sizes = stops[nonempty] - self._starts
        lacks_end = source.tokens[stops[nonempty] - 1] != eos
        self.ends = np.cumsum(self._sizes + lacks_end)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens ``start`` to ``stop`` of the stream, int64 [stop - start]."""
        out = np.full(stop - start, self._eos, dtype=np.int64)
        document = int(np.searchsorted(self.ends, start, side="right"))
        position = start
        while position < stop:
            begin = int(self.ends[document - 1]) if document else 0
            end = min(stop, begin + int(self._sizes[document]))
            if position < end:  # otherwise only the document's appended end-of-text token is left
                offset = int(self._starts[document]) - begin
                out[position - start : end - start] = self._source.tokens[position + offset : end + offset]
            position = int(self.ends[document])
            document += 1
        return out


class PackedSamples:
    """Samples of ``length`` tokens from tokens ``start`` to ``stop`` of a stream.

    Item i is {"input_ids": int64 [T], "labels": int64 [T]}. With ``separate_documents``, the documents of a
    sample do not attend to each other: the sample also has their ``seqlens``, and the first token of a
    document is not a label. Samples without a label (all documents have one token) are dropped.

    Attributes:
        tokens: Number of tokens in this split.
        dropped: Number of dropped samples.

    Raises:
        UserError: A token id is ``vocab_size`` or more: another tokenizer made the data.
    """

    def __init__(
        self,
        stream: TokenStream,
        start: int,
        stop: int,
        length: int,
        vocab_size: int,
        separate_documents: bool = False,
    ):
        self._stream = stream
        self._length = length
        self._vocab_size = vocab_size
        self._separate = separate_documents
        self.tokens = stop - start
        count = max(0, (self.tokens - 1) // length)  # the last label needs a token after the last input
        ends = np.searchsorted(stream.ends, start + length * np.arange(count + 1), side="right")
        has_label = np.diff(ends) < length if separate_documents else np.ones(count, dtype=bool)
        self._starts = start + length * np.flatnonzero(has_label)
        self.dropped = int((~has_label).sum())

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        start = int(self._starts[index])
        tokens = self._stream.read(start, start + self._length + 1)
        check_ids(tokens, self._vocab_size)
        sample = {"input_ids": tokens[:-1], "labels": tokens[1:]}
        if not self._separate:
            return sample
        ends = self._ends(index) - start
        sample["labels"] = np.where(np.isin(np.arange(self._length), ends - 1), IGNORED, tokens[1:])
        bounds = np.concatenate([[0], ends[ends < self._length], [self._length]])
        return sample | {"seqlens": np.diff(bounds)}

    def labelled(self, index: int) -> int:
        """The number of labels of sample ``index`` that are not -100."""
        return self._length - (len(self._ends(index)) if self._separate else 0)

    def _ends(self, index: int) -> np.ndarray:
        """The document ends in sample ``index``, as positions in the stream."""
        start = int(self._starts[index])
        first, last = np.searchsorted(self._stream.ends, [start, start + self._length], side="right")
        return self._stream.ends[first:last]


class Sequences(Protocol):
    """Token sequences that are packed whole.

    Attributes:
        lengths: Number of tokens of each sequence, int64 [n].
        labelled: Number of labels of each sequence that are not -100, int64 [n].
    """

    lengths: np.ndarray
    labelled: np.ndarray

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """``input_ids`` and ``labels`` of sequence ``number``, int64 [length]."""
        ...


class DocumentPieces:
    """`Sequences`: the documents in tokens ``start`` to ``stop`` of a stream, cut every ``length`` tokens.

    The last label of a piece is the first token of the document's next piece, never of another document.
    Pieces without a label are dropped. Raises UserError as `PackedSamples`.
    """

    def __init__(self, stream: TokenStream, start: int, stop: int, length: int, vocab_size: int):
        self._stream = stream
        self._vocab_size = vocab_size
        inside = stream.ends[(stream.ends > start) & (stream.ends < stop)]
        bounds = np.concatenate([[start], inside, [stop]])
        counts = -(-np.diff(bounds) // length)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.repeat(bounds[:-1], counts) + length * within
        ends = np.repeat(bounds[1:], counts)
        stops = np.minimum(starts + length, ends)
        labelled = stops - starts - (stops == ends)
        kept = labelled > 0
        self._starts, self._stops, self._ends = starts[kept], stops[kept], ends[kept]
        self.lengths, self.labelled = (stops - starts)[kept], labelled[kept]

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        start, stop = int(self._starts[number]), int(self._stops[number])
        tokens = self._stream.read(start, min(stop + 1, int(self._ends[number])))
        check_ids(tokens, self._vocab_size)
        labels = np.full(stop - start, IGNORED, dtype=np.int64)
        labels[: len(tokens) - 1] = tokens[1:]
        return tokens[: stop - start], labels


class Rows:
    """Samples of whole sequences: row i concatenates the sequences in ``plan[i]``.

    Item i is {"input_ids": int64 [T], "labels": int64 [T], "seqlens": int64 [sequences of the row]}.

    Attributes:
        tokens: Number of tokens in all rows.
    """

    def __init__(self, sequences: Sequences, plan: Sequence[Sequence[int]]):
        self._sequences = sequences
        self._plan = plan
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


def one_per_row(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """One sequence per row. Raises as `first_fit`."""
    _check_lengths(lengths, capacity)
    return [[number] for number in range(len(lengths))]


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """First fit: each sequence, in order, goes into the first row with enough room, or into a new row.

    Uses at most 1.7 times the rows of the best plan (Johnson et al., 1974), in O(n log n): a binary tree over
    the rows stores the largest free room below each node, and the descent finds the first row.

    Raises:
        UserError: A length is below 1 or above ``capacity``.
    """
    _check_lengths(lengths, capacity)
    leaves = 1 << max(0, len(lengths) - 1).bit_length()
    room = [capacity] * (2 * leaves)  # children of node k: 2k and 2k + 1; leaf of row r: leaves + r
    rows: list[list[int]] = [[] for _ in lengths]
    for number, length in enumerate(lengths):
        node = 1
        while node < leaves:
            node *= 2
            node += room[node] < length
        rows[node - leaves].append(number)
        room[node] -= length
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return [row for row in rows if row]


def length_grouped(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Group sequences of similar length: sort by length, longest first, and fill each row in order.

    Leaves more free room than `first_fit`, but balances the attention work within a row.
    Raises as `first_fit`.
    """
    _check_lengths(lengths, capacity)
    rows: list[list[int]] = []
    room = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if lengths[number] > room:
            rows.append([])
            room = capacity
        rows[-1].append(number)
        room -= lengths[number]
    return rows


# Keyed by --packing; "stream" has no plan.
PACKING_PLANS: dict[str, Callable[[Sequence[int], int], list[list[int]]]] = {
    "none": one_per_row,
    "first_fit": first_fit,
    "length_grouped": length_grouped,
}


def _check_lengths(lengths: Sequence[int], capacity: int) -> None:
    for number, length in enumerate(lengths):
        if not 1 <= length <= capacity:
            raise UserError(
                f"sequence {number} has {length} tokens, but a row takes 1 to {capacity}; truncate it first"
            )
