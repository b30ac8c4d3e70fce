"""Documents -> one token stream -> samples of fixed length, or whole documents.

With T the sample length and s the token stream of a part (training, validation or test), sample i is

    input_ids = s[iT : iT + T]      labels = s[iT + 1 : iT + T + 1]

Consecutive samples share no input, and labels are shifted here: PaddleNLP's LlamaPretrainingCriterion
compares the logits at t with labels[t] as they are.
"""

from __future__ import annotations

import numpy as np

from .indexed import IndexedTokens
from .rows import IGNORED, check_ids


class TokenStream:
    """All documents concatenated, each ending in exactly one end-of-text token ``eos``.

    The token is appended to documents that lack it, without copying the data. Empty documents are dropped.
    """

    def __init__(self, source: IndexedTokens, eos: int):
        stops = source.ends
        starts = np.concatenate([[0], stops[:-1]])
        full = stops > starts
        self._source = source
        self._eos = eos
        self._starts = starts[full]
        self._sizes = stops[full] - self._starts
        lacks_end = source.tokens[stops[full] - 1] != eos
        # : end of each document in the stream, int64 [documents]
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
            if position < end:  # otherwise only the appended end-of-text token of this document is left
                offset = int(self._starts[document]) - begin
                out[position - start : end - start] = self._source.tokens[position + offset : end + offset]
            position = int(self.ends[document])
            document += 1
        return out


class PackedSamples:
    """Samples of ``length`` tokens from tokens ``start`` to ``stop`` of a stream.

    Item i is {"input_ids": int64 [T], "labels": int64 [T]}. With ``apart``, the documents of a sample do not
    attend to each other: the sample also has their ``seqlens``, and no label is another document's first
    token. Samples without a label, whose documents have one token each, are left out. ValueError for an id of
    ``vocab_size`` or more, which means that another tokenizer made the data.
    """

    def __init__(
        self, stream: TokenStream, start: int, stop: int, length: int, vocab_size: int, apart: bool = False
    ):
        self._stream = stream
        self._length = length
        self._vocab_size = vocab_size
        self._apart = apart
        # : number of tokens in this part
        self.tokens = stop - start
        count = max(0, (self.tokens - 1) // length)  # the last label needs a token after the last input
        ends = np.searchsorted(stream.ends, start + length * np.arange(count + 1), side="right")
        labelled = np.diff(ends) < length if apart else np.ones(count, dtype=bool)
        self._starts = start + length * np.flatnonzero(labelled)
        # : number of samples that are left out
        self.left_out = int((~labelled).sum())

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        start = int(self._starts[index])
        tokens = self._stream.read(start, start + self._length + 1)
        check_ids(tokens, self._vocab_size)
        sample = {"input_ids": tokens[:-1], "labels": tokens[1:]}
        if not self._apart:
            return sample
        ends = self._ends(index) - start
        sample["labels"] = np.where(np.isin(np.arange(self._length), ends - 1), IGNORED, tokens[1:])
        bounds = np.concatenate([[0], ends[ends < self._length], [self._length]])
        return sample | {"seqlens": np.diff(bounds)}

    def labelled(self, index: int) -> int:
        """The number of labels of sample ``index`` that are not -100."""
        return self._length - (len(self._ends(index)) if self._apart else 0)

    def _ends(self, index: int) -> np.ndarray:
        """The document ends in sample ``index``, as positions in the stream."""
        start = int(self._starts[index])
        first, last = np.searchsorted(self._stream.ends, [start, start + self._length], side="right")
        return self._stream.ends[first:last]


class DocumentPieces:
    """The documents between tokens ``start`` and ``stop`` of a stream, cut into pieces of at most ``length``.

    The last label of a piece is the first token of the document's next piece, never of another document.
    Pieces without a label are dropped. ValueError as for `PackedSamples`.
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
        # : number of tokens and of labels of each piece, int64 [pieces]
        self.lengths, self.labelled = (stops - starts)[kept], labelled[kept]

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """``input_ids`` and ``labels`` of a piece, int64 [length]."""
        start, stop = int(self._starts[number]), int(self._stops[number])
        tokens = self._stream.read(start, min(stop + 1, int(self._ends[number])))
        check_ids(tokens, self._vocab_size)
        labels = np.full(stop - start, IGNORED, dtype=np.int64)
        labels[: len(tokens) - 1] = tokens[1:]
        return tokens[: stop - start], labels
