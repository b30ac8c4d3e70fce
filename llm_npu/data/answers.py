"""Conversations -> token sequences whose labels are the assistant's answers."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from pathlib import Path

import numpy as np

from llm_npu.config import DataArguments
from llm_npu.core.cache import cached
from llm_npu.core.errors import UserError

from .arrays import mapped
from .datasets import Datasets, packed
from .packing import check_ids
from .rows import IGNORED
from .split import PARTS, file_parts
from .text import chat_template
from .text.conversations import Conversations
from .text.tokenizer import fingerprint

QUESTIONS = 100  # search window for a short prompt


def load(
    data: DataArguments,
    source: Conversations,
    tokenizer,
    vocab_size: int,
    needed: tuple[bool, bool, bool],
) -> Datasets:
    """The parts of ``source``, split by ``data.split``; a file named dev becomes the validation part.

    The tokenizer gets the chat template of ``data``, or the default one if it has none. ValueError as for
    `tokenised` and `Answers`, and for a needed part without an answer.
    """
    notes = attach_template(data, tokenizer)
    parts = file_parts(
        source, lambda lines: tokenised(lines, tokenizer, data.data_cache), count, data.split, needed
    )
    found = [Answers(*where, data.max_seq_length, vocab_size) for _, *where in parts]
    for sequences, need, name in zip(found, needed, PARTS, strict=True):
        if need and not len(sequences.lengths):
            raise UserError(
                f"no conversation of the {name} part of {source.name} has an answer in its first "
                f"{data.max_seq_length} tokens; raise --max_seq_length"
            )
    if cut := sum(part.cut for part in found):
        notes.append(f"{cut:,} conversations of more than {data.max_seq_length:,} tokens are truncated")
    if left_out := sum(part.left_out for part in found):
        notes.append(
            f"{left_out:,} conversations are dropped: no answer begins within {data.max_seq_length:,} tokens"
        )
    samples = packed(data, found, "conversations")
    return dataclasses.replace(samples, notes=(*samples.notes, *notes))


def attach_template(data: DataArguments, tokenizer) -> list[str]:
    """Give the tokenizer the chat template of ``data``, or the default one if it has none; notes about it."""
    if data.chat_template is not None:
        chat_template.attach(tokenizer, chat_template.read(data.chat_template))
    if chat_template.source_of(tokenizer) is not None:
        return []
    chat_template.attach(tokenizer, chat_template.DEFAULT)
    return ["the tokenizer has no chat template: turns are formatted as User: and Assistant:"]


class Answers:
    """Conversations ``start`` to ``stop`` (indices) of a folder written by `tokenised`.

    For a conversation with tokens x, ``labels[t]`` is x[t + 1] if that token belongs to an answer, otherwise
    -100. A conversation of more than ``length`` tokens is truncated; one without a label is dropped.
    ValueError for an id of ``vocab_size`` or more.
    """

    def __init__(self, folder: Path, start: int, stop: int, length: int, vocab_size: int):
        self._ids, self._learnt, ends = _tokens(folder)
        bounds = np.concatenate([[0], ends])[start : stop + 1]
        lengths = np.minimum(np.diff(bounds), length)
        learnt = np.concatenate([[0], np.cumsum(self._learnt, dtype=np.int64)])
        starts = bounds[:-1]
        labelled = learnt[starts + lengths] - learnt[np.minimum(starts + 1, starts + lengths)]
        kept = labelled > 0
        self._vocab_size = vocab_size
        self._starts = starts[kept]
        # : number of tokens and of labels of each conversation, int64 [conversations]
        self.lengths, self.labelled = lengths[kept], labelled[kept]
        # : number of truncated and of dropped conversations
        self.cut, self.left_out = int((np.diff(bounds) > length)[kept].sum()), int((~kept).sum())

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """``input_ids`` and ``labels`` of a conversation, int64 [length]."""
        start = int(self._starts[number])
        stop = start + int(self.lengths[number])
        tokens = self._ids[start:stop].astype(np.int64)
        check_ids(tokens, self._vocab_size)
        labels = np.full(len(tokens), IGNORED, dtype=np.int64)
        labels[:-1] = np.where(self._learnt[start + 1 : stop], tokens[1:], IGNORED)
        return tokens, labels


def tokenised(source: Conversations, tokenizer, cache: str | None) -> Path:
    """The cache folder with the ids of all conversations, their answer mask and their ends.

    The tokenizer must have a chat template. ValueError, with file and line, for a line that is not a
    conversation and for one that the template rejects; also if there are no conversations.
    """
    content = f"{source.fingerprint()} {fingerprint(tokenizer)} {chat_template.fingerprint(tokenizer)}"
    key = hashlib.sha256(content.encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        encoded = [_encoded(tokenizer, messages, where) for where, messages in source.conversations()]
        if not encoded:
            raise UserError(f"{source.name} contains no conversations")
        ids, learnt = (np.concatenate(parts) for parts in zip(*encoded, strict=True))
        np.save(folder / "ids.npy", ids.astype(np.int32))
        np.save(folder / "learnt.npy", learnt)
        np.save(folder / "ends.npy", np.cumsum([len(one) for one, _ in encoded]))

    return cached(f"conversations-{key}", build, cache)


def first_question(source: Conversations, tokenizer) -> str:
    """The shortest prompt (text before the first answer) among the first conversations."""
    first = itertools.islice(source.conversations(), QUESTIONS)
    return min((chat_template.pieces(tokenizer, messages)[0][0] for _, messages in first), key=len)


def count(folder: Path) -> int:
    """The number of conversations in a folder written by `tokenised`."""
    return len(_tokens(folder)[2])


def _tokens(folder: Path) -> list[np.ndarray]:
    """Ids, answer mask and ends of the conversations."""
    kinds = {"ids": (np.int32, 1), "learnt": (np.bool_, 1), "ends": (np.int64, 1)}
    return mapped(folder, kinds, _is_consistent)


def _is_consistent(ids: np.ndarray, learnt: np.ndarray, ends: np.ndarray) -> bool:
    return len(ids) == len(learnt) == ends[-1] and ends[0] >= 0 and not (np.diff(ends) < 0).any()


def _encoded(tokenizer, messages: list[dict[str, str]], where: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        return chat_template.encode(tokenizer, messages)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error
