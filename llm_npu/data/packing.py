"""Documents -> one stream of tokens -> samples of fixed length, and their order in training.

With T the length of a sample and s the stream of a part (training, validation or test), sample i is

    input_ids = s[iT : iT + T]      labels = s[iT + 1 : iT + T + 1]

so consecutive samples share no input, and labels are shifted here: PaddleNLP's LlamaPretrainingCriterion
compares the logits at t with labels[t] as they are.
"""

from __future__ import annotations

import numpy as np

from .indexed import IndexedTokens


class TokenStream:
    """All documents one after the other, each ending in one end-of-text token ``eos``.

    The token is added to documents that lack it, without a copy of the data. Empty documents vanish.
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
        #: where each document ends in the stream, int64 [documents]
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
            if position < end:  # else only the added end-of-text token is left of this document
                offset = int(self._starts[document]) - begin
                out[position - start : end - start] = self._source.tokens[position + offset : end + offset]
            position = int(self.ends[document])
            document += 1
        return out


class PackedSamples:
    """Samples of ``length`` tokens from tokens ``start`` to ``stop`` of a stream.

    Item i is {"input_ids": int64 [T], "labels": int64 [T]}. ValueError for an id of ``vocab_size`` or more,
    which only data of another tokenizer can hold.
    """

    def __init__(self, stream: TokenStream, start: int, stop: int, length: int, vocab_size: int):
        self._stream = stream
        self._start = start
        self._length = length
        self._vocab_size = vocab_size
        #: tokens in this part
        self.tokens = stop - start

    def __len__(self) -> int:
        return max(0, (self.tokens - 1) // self._length)  # the last label needs a token after the last input

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        start = self._start + index * self._length
        tokens = self._stream.read(start, start + self._length + 1)
        check_ids(tokens, self._vocab_size)
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}

    def shuffled(self, num_samples: int, seed: int) -> ShuffledSamples:
        """``num_samples`` of these samples in random order, going through all of them again and again."""
        return ShuffledSamples(self, num_samples, seed)


class ShuffledSamples:
    """Item i is samples[p[i mod n]], n = len(samples), with p the permutation of epoch i div n.

    p is a pure function of seed and epoch, so item i is one of the seed and i: a run that continues at i
    after an interruption sees what it would have seen without.
    """

    def __init__(self, samples: PackedSamples, num_samples: int, seed: int):
        if not len(samples):
            raise ValueError("there is no sample to train on")
        self._samples = samples
        self._num_samples = num_samples
        self._seed = seed
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} of {self._num_samples}")
        epoch, position = divmod(index, len(self._samples))
        if epoch != self._epoch:
            self._order = permutation(self._seed, epoch, len(self._samples))
            self._epoch = epoch
        return self._samples[int(self._order[position])]


def permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """The order of ``size`` samples in an epoch, int64 [size]; a pure function of its arguments."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(size)


def check_ids(tokens: np.ndarray, vocab_size: int) -> None:
    """ValueError when an id lies outside 0 ... ``vocab_size`` - 1."""
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < vocab_size):
        wrong = int(tokens.max()) if tokens.max() >= vocab_size else int(tokens.min())
        raise ValueError(
            f"the data hold token id {wrong}, but the model's vocabulary has ids 0 to {vocab_size - 1}; "
            "they were made with another tokenizer"
        )
