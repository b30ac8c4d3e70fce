"""Preference pairs -> token sequences with the prompt once, then the chosen and the rejected answer.

Of a prompt p1 ... pP, a chosen answer c1 ... cC and a rejected one r1 ... rR:

    input_ids   p1 ... p(P-1)   pP c1 ... c(C-1)   pP r1 ... r(R-1)        P + C + R - 1 tokens
    labels      -100 ...        c1 c2 ... cC       r1 r2 ... rR

The two answers do not see each other, and both continue the prompt's positions: PaddleFormers' layout
(``llm_npu.data.pair_batches``).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from pathlib import Path

import numpy as np

from llm_npu.config import DataArguments
from llm_npu.core.cache import cached
from llm_npu.core.errors import UserError

from .answers import KIND, QUESTIONS, attach_template, unused_notes
from .arrays import mapped
from .datasets import Datasets, packed
from .rows import IGNORED, Rows, check_ids
from .split import PARTS, file_parts
from .text import chat_template, encoding, turns
from .text.fields import Unused
from .text.preferences import Pair, Preferences
from .text.tokenizer import fingerprint
from .text.turns import Omitted


def load(
    data: DataArguments,
    source: Preferences,
    tokenizer,
    vocab_size: int,
    needed: tuple[bool, bool, bool],
) -> Datasets:
    """The parts of ``source``, split by ``data.split``; but for the parts that the names of files assign.

    The tokenizer gets the chat template of ``data``, or the default one if it has none. Pairs of more than
    ``max_seq_length`` tokens are left out, with a note that names the first. ValueError as for `tokenised`
    and `Pairs`, and for a needed part in which all pairs are too long.
    """
    notes = attach_template(data, tokenizer)
    parts = file_parts(
        source, lambda lines: tokenised(lines, tokenizer, data.data_cache), count, data.split, needed
    )
    found = []
    for (texts, *where), need, name in zip(parts, needed, PARTS, strict=True):
        found.append(Pairs(*where, data.max_seq_length, vocab_size))
        if need and (left_out := found[-1].left_out):
            notes.append(_too_long(texts, left_out, data.max_seq_length))
            if not len(found[-1].lengths):
                raise UserError(f"the {name} part of {source.name} is empty: {notes[-1]}")
    samples = packed(data, found, source.content, PairRows)
    return dataclasses.replace(samples, notes=(*samples.notes, *source.notes, *notes, *unused_notes(parts)))


class Pairs:
    """Pairs ``start`` to ``stop`` (indices) of a folder written by `tokenised`.

    Those of more than ``length`` tokens are left out: cut answers would not be those that were preferred.
    ValueError for an id of ``vocab_size`` or more.
    """

    def __init__(self, folder: Path, start: int, stop: int, length: int, vocab_size: int):
        self._ids, sizes = _tokens(folder)
        starts = np.concatenate([[0], np.cumsum(sizes.sum(axis=1))])[start:stop]
        sizes = sizes[start:stop]
        lengths = sizes.sum(axis=1) - 1
        kept = lengths <= length
        self._vocab_size = vocab_size
        self._starts = starts[kept]
        # : number of tokens of the prompt, the chosen and the rejected answer, int64 [pairs, 3]
        self.sizes = sizes[kept]
        # : number of tokens of each pair, int64 [pairs]; a pair counts as one label, whatever its length
        self.lengths, self.labelled = lengths[kept], np.ones(kept.sum(), dtype=np.int64)
        # : {index in the folder: tokens} of the pairs that are too long
        self.left_out = {start + int(number): int(lengths[number]) for number in np.flatnonzero(~kept)}

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """``input_ids`` and ``labels`` of a pair, int64 [length]."""
        prompt, chosen, rejected = self.sizes[number].tolist()
        start = int(self._starts[number])
        tokens = self._ids[start : start + prompt + chosen + rejected].astype(np.int64)
        check_ids(tokens, self._vocab_size)
        asked, first, second = np.split(tokens, [prompt, prompt + chosen])
        labels = np.full(len(tokens) - 1, IGNORED, dtype=np.int64)
        labels[prompt - 1 :] = tokens[prompt:]
        return np.concatenate([asked, first[:-1], asked[-1:], second[:-1]]), labels


class PairRows(Rows):
    """Samples of whole pairs. Item i of `Rows` also has

    pairs       int64 [pairs of the row, 3]: the tokens of their prompts, chosen and rejected answers
    reference   float32 [pairs of the row, 2]: the reference model's log-probabilities of the chosen and the
                rejected answer, once ``rows.reference`` has those of all pairs, float32 [pairs, 2]
    """

    reference: np.ndarray | None = None

    @property
    def sizes(self) -> np.ndarray:
        """The tokens of all prompts, chosen and rejected answers: int64 [pairs, 3]."""
        return self._sequences.sizes

    def numbers(self, index: int) -> list[int]:
        """The numbers of the pairs of sample ``index``."""
        return list(self._plan[index])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        sample = super().__getitem__(index)
        numbers = self.numbers(index)
        sample["pairs"] = self.sizes[numbers]
        if self.reference is not None:
            sample["reference"] = self.reference[numbers]
        return sample


def tokenised(source: Preferences, tokenizer, cache: str | None) -> Path:
    """The cache folder with the ids of all pairs and the sizes of their parts.

    The tokenizer must have a chat template. ValueError, with file and line, for a line that is no pair and
    for one that the template rejects; also if there are no pairs.
    """
    content = f"{source.fingerprint()} {fingerprint(tokenizer)} {chat_template.fingerprint(tokenizer)} {KIND}"
    key = hashlib.sha256(content.encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        encoded, unused = [], Unused()
        omitted = Omitted(functools.partial(turns.last_answer, tokenizer), unused)
        with encoding.running(tokenizer):
            for pair in source.pairs():
                encoded.append(_encoded(tokenizer, pair, omitted))
                unused.unread.update(pair.unread)
        if not encoded:
            raise UserError(f"{source.name} contains no preference pairs")
        np.save(
            folder / "ids.npy", np.concatenate([*itertools.chain.from_iterable(encoded)]).astype(np.int32)
        )
        np.save(folder / "sizes.npy", np.array([[*map(len, parts)] for parts in encoded], dtype=np.int64))
        unused.save(folder)

    return cached(f"pairs-{key}", build, cache)


def count(folder: Path) -> int:
    """The number of pairs in a folder written by `tokenised`."""
    return len(_tokens(folder)[1])


def first_prompt(source: Preferences, tokenizer) -> str:
    """The shortest prompt among the first pairs, as text."""
    first = itertools.islice(source.pairs(), QUESTIONS)
    texts = (chat_template.rendered(tokenizer, pair.prompt, True, pair.tools).text for pair in first)
    return min(texts, key=len)


def _encoded(tokenizer, pair: Pair, omitted: Omitted) -> list[np.ndarray]:
    answers = pair.chosen, pair.rejected
    try:
        parts = turns.encode_answers(tokenizer, pair.prompt, answers, pair.tools)
        for answer, first in zip(answers, (0, len(pair.prompt)), strict=True):  # the prompt is there once
            messages = [*pair.prompt, answer]
            result = turns.last_answer(tokenizer, messages, pair.tools)
            omitted.count(messages, pair.tools, result, "".join(result), first)
    except ValueError as error:
        raise UserError(f"{pair.where}: {error}") from error
    for name, part in zip(("prompt", "chosen answer", "rejected answer"), parts, strict=True):
        if not len(part):
            raise UserError(f"{pair.where}: the chat template leaves no token of the {name}")
    if np.array_equal(*parts[1:]):
        raise UserError(
            f"{pair.where}: the chosen answer and the rejected one have the same tokens, so neither is "
            "preferred"
        )
    return parts


def _tokens(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Ids of all pairs, and the sizes of their parts [pairs, 3]."""
    ids, sizes = mapped(
        folder,
        {"ids": (np.int32, 1), "sizes": (np.int64, 2)},
        lambda ids, sizes: sizes.shape[1] == 3 and (sizes > 0).all() and sizes.sum() == len(ids),
    )
    return ids, sizes


def _too_long(source: Preferences, left_out: dict[int, int], length: int) -> str:
    first, tokens = next(iter(left_out.items()))
    where = next(itertools.islice(source.pairs(), first, None)).where
    return (
        f"preference pairs of more than {length:,} tokens are left out: {len(left_out):,}, the first with "
        f"{tokens:,} tokens in {where}; raise --max_seq_length to keep them"
    )
