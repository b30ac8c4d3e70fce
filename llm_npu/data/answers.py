"""Conversations -> token sequences whose labels are the assistant's answers."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from llm_npu.config import DataArguments
from llm_npu.core.cache import cached
from llm_npu.core.errors import UserError

from .arrays import mapped
from .datasets import Datasets, packed
from .rows import IGNORED, check_ids
from .split import PARTS, file_parts
from .text import chat_template, encoding, turns
from .text.conversations import Conversation, Conversations
from .text.fields import Unused
from .text.tokenizer import fingerprint
from .text.turns import Omitted

QUESTIONS = 100  # search window for a short prompt
KIND = 2  # of the files that `tokenised` writes


def load(
    data: DataArguments,
    source: Conversations,
    tokenizer,
    vocab_size: int,
    needed: tuple[bool, bool, bool],
) -> Datasets:
    """The parts of ``source``, split by ``data.split``; but for the parts that the names of files assign.

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
            whole = sequences.untrained == sequences.conversations
            raise UserError(
                f"no conversation of the {name} part of {source.name} has "
                + (
                    "an answer to train on; all have weight 0"
                    if whole
                    else f"an answer in its first {data.max_seq_length} tokens; raise --max_seq_length"
                )
            )
    if chat_template.marks_answers(tokenizer):
        notes.append("the chat template marks what is trained: its generation blocks")
    texts, conversations = (sum(getattr(part, name) for part in found) for name in ("texts", "conversations"))
    what = "conversations"
    if rewritten := sum(part.rewritten for part in found):
        what = "texts of conversations"
        notes.append(
            f"the chat template rewrites earlier turns: {rewritten:,} of {conversations:,} conversations "
            f"become several texts, {texts:,} in all, so that each answer is trained in its own context"
        )
    if untrained := sum(part.untrained for part in found):
        notes.append(f"{untrained:,} conversations are dropped: all their answers have weight 0")
    if cut := sum(part.cut for part in found):
        notes.append(f"{cut:,} {what} of more than {data.max_seq_length:,} tokens are truncated")
    if left_out := sum(part.left_out for part in found):
        notes.append(
            f"{left_out:,} {what} are dropped: no answer begins within {data.max_seq_length:,} tokens"
        )
    samples = packed(data, found, what)
    return dataclasses.replace(samples, notes=(*samples.notes, *source.notes, *notes, *unused_notes(parts)))


def unused_notes(parts: Iterable[tuple]) -> list[str]:
    """The notes about what is not used of the files of ``parts``, as `file_parts` returns them."""
    unused = Unused()
    for folder in {folder for _, folder, *_ in parts}:
        unused.add_saved(folder)
    return unused.notes()


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

    A conversation is one text, or several (`turns.samples`). For a text with tokens x, ``labels[t]`` is
    x[t + 1] if that token is trained, otherwise -100. A text of more than ``length`` tokens is truncated; one
    without a label is dropped. ValueError for an id of ``vocab_size`` or more.
    """

    def __init__(self, folder: Path, start: int, stop: int, length: int, vocab_size: int):
        self._ids, self._learnt, ends, last_texts = _tokens(folder)
        last_texts = np.concatenate([[0], last_texts])[start : stop + 1]
        counts = np.diff(last_texts)
        # : number of conversations; of those without a trained answer, and of those with several texts
        self.conversations = stop - start
        self.untrained, self.rewritten = int((counts == 0).sum()), int((counts > 1).sum())
        # : number of texts
        self.texts = int(counts.sum())
        bounds = np.concatenate([[0], ends])[last_texts[0] : last_texts[-1] + 1]
        lengths = np.minimum(np.diff(bounds), length)
        learnt = np.concatenate([[0], np.cumsum(self._learnt, dtype=np.int64)])
        starts = bounds[:-1]
        labelled = learnt[starts + lengths] - learnt[np.minimum(starts + 1, starts + lengths)]
        kept = labelled > 0
        self._vocab_size = vocab_size
        self._starts = starts[kept]
        # : number of tokens and of labels of each text, int64 [texts]
        self.lengths, self.labelled = lengths[kept], labelled[kept]
        # : number of truncated and of dropped texts
        self.cut, self.left_out = int((np.diff(bounds) > length)[kept].sum()), int((~kept).sum())

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """``input_ids`` and ``labels`` of a text, int64 [length]."""
        start = int(self._starts[number])
        stop = start + int(self.lengths[number])
        tokens = self._ids[start:stop].astype(np.int64)
        check_ids(tokens, self._vocab_size)
        labels = np.full(len(tokens), IGNORED, dtype=np.int64)
        labels[:-1] = np.where(self._learnt[start + 1 : stop], tokens[1:], IGNORED)
        return tokens, labels


def tokenised(source: Conversations, tokenizer, cache: str | None) -> Path:
    """The cache folder with the ids of all texts, the mask of what is trained, the ends of texts, and after
    how many texts each conversation ends.

    The tokenizer must have a chat template. ValueError, with file and line, for a line that is not a
    conversation and for one that the template rejects; also if there are no conversations.
    """
    content = f"{source.fingerprint()} {fingerprint(tokenizer)} {chat_template.fingerprint(tokenizer)} {KIND}"
    key = hashlib.sha256(content.encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        encoded, last_texts, unused = [], [], Unused()
        omitted = Omitted(functools.partial(turns.samples, tokenizer), unused)
        with encoding.running(tokenizer):
            for each in source.conversations():
                encoded += _encoded(tokenizer, each, omitted)
                unused.unread.update(each.unread)
                last_texts.append(len(encoded))
        if not last_texts:
            raise UserError(f"{source.name} contains no conversations")
        ids, learnt = ([part[index] for part in encoded] for index in range(2))
        np.save(folder / "ids.npy", np.concatenate([*ids, np.zeros(0)]).astype(np.int32))
        np.save(folder / "learnt.npy", np.concatenate([*learnt, np.zeros(0)]).astype(np.bool_))
        np.save(folder / "ends.npy", np.cumsum([len(one) for one, _ in encoded], dtype=np.int64))
        np.save(folder / "last_texts.npy", np.array(last_texts, dtype=np.int64))
        unused.save(folder)

    return cached(f"conversations-{key}", build, cache)


def first_question(source: Conversations, tokenizer) -> str | None:
    """The shortest prompt (text before the first answer) among the first conversations, or None."""
    first = itertools.islice(source.conversations(), QUESTIONS)
    texts = (turns.samples(tokenizer, each.messages, each.tools, each.context) for each in first)
    return min((pieces[0][0][0] for pieces in texts if pieces), key=len, default=None)


def count(folder: Path) -> int:
    """The number of conversations in a folder written by `tokenised`."""
    return len(_tokens(folder)[3])


def _tokens(folder: Path) -> list[np.ndarray]:
    """Ids, mask, ends of the texts, and the number of texts up to the end of each conversation."""
    kinds = {"ids": (np.int32, 1), "learnt": (np.bool_, 1), "ends": (np.int64, 1)}
    return mapped(folder, kinds | {"last_texts": (np.int64, 1)}, _is_consistent)


def _is_consistent(ids: np.ndarray, learnt: np.ndarray, ends: np.ndarray, last_texts: np.ndarray) -> bool:
    return len(ids) == len(learnt) and _counts(ends, len(ids)) and _counts(last_texts, len(ends))


def _counts(up_to: np.ndarray, total: int) -> bool:
    """Whether ``up_to`` never falls, and ends at ``total``."""
    steps = np.diff(np.concatenate([[0], up_to, [total]]))
    return not (steps < 0).any() and steps[-1] == 0


def _encoded(tokenizer, conversation: Conversation, omitted: Omitted) -> list[tuple[np.ndarray, np.ndarray]]:
    messages, tools, context = conversation.messages, conversation.tools, conversation.context
    try:
        found = turns.samples(tokenizer, messages, tools, context)
        text = "".join(text for pieces in found for text, _ in pieces)
        omitted.count(messages, tools, turns.samples(tokenizer, messages, tools) if context else found, text)
        return [turns.encode(tokenizer, pieces) for pieces in found]
    except ValueError as error:
        raise UserError(f"{conversation.where}: {error}") from error
