"""Stage dpo: converts preference pairs to token sequences of prompt, chosen and rejected answer.

For a prompt p1 ... pP, a chosen answer c1 ... cC and a rejected answer r1 ... rR:

    input_ids   p1 ... p(P-1)   pP c1 ... c(C-1)   pP r1 ... r(R-1)        P + C + R - 1 tokens
    labels      -100 ...        c1 c2 ... cC       r1 r2 ... rR

The two answers do not attend to each other, and both continue the prompt's positions: PaddleFormers' layout
(`llm_npu.data.collate.PairCollator`).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llm_npu.core.cache import cached, mapped_arrays
from llm_npu.core.errors import UserError

from .answers import KIND, QUESTIONS
from .indexed import PARTS, check_ids
from .packing import IGNORED, Rows
from .text import chat_template, encoding, turns
from .text.preferences import Pair, Preferences
from .text.records import Unused
from .text.tokenizer import fingerprint
from .text.turns import Omitted


def sequences(
    source: Preferences,
    parts: Sequence[tuple],
    tokenizer,
    length: int,
    vocab_size: int,
    needed: Sequence[bool],
) -> tuple[list[Pairs], str, list[str]]:
    """The pairs of each of ``parts`` (files, folder, start, stop), their name in messages, and notes.

    Pairs of more than ``length`` tokens are dropped, with a note that names the first one. Raises UserError
    if all pairs of a needed split are too long.
    """
    notes, pairs = [], []
    for (files, *location), is_needed, name in zip(parts, needed, PARTS, strict=True):
        part = Pairs(*location, length, vocab_size)
        pairs.append(part)
        if is_needed and part.dropped:
            notes.append(_too_long(files, part.dropped, length))
            if not len(part.lengths):
                raise UserError(f"the {name} split of {source.name} is empty: {notes[-1]}")
    return pairs, source.content, notes


class Pairs:
    """`Sequences` of pairs ``start`` to ``stop`` (indices) of a folder written by `encode`.

    Pairs of more than ``length`` tokens are dropped, not truncated: the preference is about whole answers.
    Each pair counts as one label, whatever its length. Raises UserError for an id of ``vocab_size`` or more.

    Attributes:
        sizes: Number of tokens of the prompt, the chosen and the rejected answer, int64 [pairs, 3].
        dropped: {index in the folder: tokens} of the pairs that are too long.
    """

    def __init__(self, folder: Path, start: int, stop: int, length: int, vocab_size: int):
        self._ids, sizes = _arrays(folder)
        starts = np.concatenate([[0], np.cumsum(sizes.sum(axis=1))])[start:stop]
        sizes = sizes[start:stop]
        lengths = sizes.sum(axis=1) - 1
        kept = lengths <= length
        self._vocab_size = vocab_size
        self._starts = starts[kept]
        self.sizes = sizes[kept]
        self.lengths, self.labelled = lengths[kept], np.ones(kept.sum(), dtype=np.int64)
        self.dropped = {start + int(number): int(lengths[number]) for number in np.flatnonzero(~kept)}

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        prompt, chosen, rejected = self.sizes[number].tolist()
        start = int(self._starts[number])
        tokens = self._ids[start : start + prompt + chosen + rejected].astype(np.int64)
        check_ids(tokens, self._vocab_size)
        prompt_ids, chosen_ids, rejected_ids = np.split(tokens, [prompt, prompt + chosen])
        labels = np.full(len(tokens) - 1, IGNORED, dtype=np.int64)
        labels[prompt - 1 :] = tokens[prompt:]
        input_ids = np.concatenate([prompt_ids, chosen_ids[:-1], prompt_ids[-1:], rejected_ids[:-1]])
        return input_ids, labels


class PairRows(Rows):
    """Samples of whole pairs. In addition to `Rows`, item i has

    pairs       int64 [pairs of the row, 3]: number of tokens of each prompt, chosen and rejected answer
    reference   float32 [pairs of the row, 2]: the reference model's log-probabilities of the chosen and the
                rejected answer, if ``reference`` is set

    Attributes:
        reference: The log-probabilities of all pairs, float32 [pairs, 2].
    """

    reference: np.ndarray | None = None

    @property
    def sizes(self) -> np.ndarray:
        """Number of tokens of each prompt, chosen and rejected answer: int64 [pairs, 3]."""
        return self._sequences.sizes

    def numbers(self, index: int) -> list[int]:
        """Indices of the pairs in sample ``index``."""
        return list(self._plan[index])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        sample = super().__getitem__(index)
        numbers = self.numbers(index)
        sample["pairs"] = self.sizes[numbers]
        if self.reference is not None:
            sample["reference"] = self.reference[numbers]
        return sample


ROWS = PairRows  # the samples


def encode(source: Preferences, tokenizer, cache: str | None) -> Path:
    """Encode all pairs into a cache folder and return the folder.

        ids.npy      the ids of all pairs, int32
        sizes.npy    number of tokens of each prompt, chosen and rejected answer, int64 [pairs, 3]
        unused.json  unused keys of the data

    The tokenizer must have a chat template. Raises UserError, with file and line, for a line that is not a
    pair or that the template rejects, and if there are no pairs.
    """
    content = f"{source.fingerprint()} {fingerprint(tokenizer)} {chat_template.fingerprint(tokenizer)} {KIND}"
    key = hashlib.sha256(content.encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        pairs, unused = [], Unused()
        omitted = Omitted(functools.partial(turns.last_answer, tokenizer), unused)
        with encoding.running(tokenizer):
            for pair in source.pairs():
                pairs.append(_encode_pair(tokenizer, pair, omitted))
                unused.unread.update(pair.unread)
        if not pairs:
            raise UserError(f"{source.name} contains no preference pairs")
        ids = np.concatenate([*itertools.chain.from_iterable(pairs)])
        np.save(folder / "ids.npy", ids.astype(np.int32))
        np.save(folder / "sizes.npy", np.array([[*map(len, pair)] for pair in pairs], dtype=np.int64))
        unused.save(folder)

    return cached(f"pairs-{key}", build, cache)


def count(folder: Path) -> int:
    """The number of pairs in a folder written by `encode`."""
    return len(_arrays(folder)[1])


def first_prompt(source: Preferences, tokenizer) -> str:
    """The shortest prompt among the first pairs, as text."""
    first = itertools.islice(source.pairs(), QUESTIONS)
    texts = (chat_template.rendered(tokenizer, pair.prompt, True, pair.tools).text for pair in first)
    return min(texts, key=len)


def _encode_pair(tokenizer, pair: Pair, omitted: Omitted) -> list[np.ndarray]:
    answers = pair.chosen, pair.rejected
    try:
        parts = turns.encode_answers(tokenizer, pair.prompt, answers, pair.tools)
        for answer, first in zip(answers, (0, len(pair.prompt)), strict=True):  # the prompt is stored once
            messages = [*pair.prompt, answer]
            result = turns.last_answer(tokenizer, messages, pair.tools)
            omitted.count(messages, pair.tools, result, "".join(result), first)
    except ValueError as error:
        raise UserError(f"{pair.where}: {error}") from error
    for name, part in zip(("prompt", "chosen answer", "rejected answer"), parts, strict=True):
        if not len(part):
            raise UserError(f"{pair.where}: the chat template renders no token of the {name}")
    if np.array_equal(*parts[1:]):
        raise UserError(
            f"{pair.where}: the chosen and the rejected answer have the same tokens, so neither is preferred"
        )
    return parts


def _arrays(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The arrays that `encode` saved."""
    ids, sizes = mapped_arrays(
        folder,
        {"ids": (np.int32, 1), "sizes": (np.int64, 2)},
        lambda ids, sizes: sizes.shape[1] == 3 and (sizes > 0).all() and sizes.sum() == len(ids),
    )
    return ids, sizes


def _too_long(files: Preferences, dropped: dict[int, int], length: int) -> str:
    first, tokens = next(iter(dropped.items()))
    where = next(itertools.islice(files.pairs(), first, None)).where
    return (
        f"{len(dropped):,} preference pairs of more than {length:,} tokens are dropped; the first has "
        f"{tokens:,} tokens ({where}). Raise --max_seq_length to keep them"
    )
