"""Stage sft: converts conversations to token sequences; the labels are the assistant's answers."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from llm_npu.core.cache import cached, mapped_arrays
from llm_npu.core.errors import UserError

from .indexed import PARTS, check_ids
from .packing import IGNORED, Rows
from .text import chat_template, encoding, turns
from .text.conversations import Conversation, Conversations
from .text.records import Unused
from .text.tokenizer import fingerprint
from .text.turns import Omitted

ROWS = Rows  # the samples
QUESTIONS = 100  # number of conversations searched for a short prompt
KIND = 2  # version of the files that `encode` writes
TOTALS = (
    "conversations",
    "untrained",
    "rewritten",
    "texts",
    "truncated",
    "dropped",
)  # summed over all splits


def sequences(
    source: Conversations,
    parts: Sequence[tuple],
    tokenizer,
    length: int,
    vocab_size: int,
    needed: Sequence[bool],
) -> tuple[list[Answers], str, list[str]]:
    """The texts of each of ``parts`` (files, folder, start, stop), their name in messages, and notes.

    Raises UserError if a needed split has no answer.
    """
    texts = [Answers(*part[1:], length, vocab_size) for part in parts]
    for part, is_needed, name in zip(texts, needed, PARTS, strict=True):
        if is_needed and not len(part.lengths):
            weights_are_0 = part.untrained == part.conversations
            raise UserError(
                f"no conversation in the {name} split of {source.name} has "
                + (
                    "an answer to train on; all answers have weight 0"
                    if weights_are_0
                    else f"an answer in its first {length} tokens; raise --max_seq_length"
                )
            )
    totals = {name: sum(getattr(part, name) for part in texts) for name in TOTALS}
    notes, what = [], "conversations"
    if chat_template.marks_answers(tokenizer):
        notes.append("only the chat template's generation blocks are trained")
    if rewritten := totals["rewritten"]:
        what = "texts of conversations"
        notes.append(
            f"the chat template rewrites earlier turns: {rewritten:,} of {totals['conversations']:,} "
            f"conversations are expanded to a total of {totals['texts']:,} texts, so that each answer is "
            "trained in the context of its prompt"
        )
    if untrained := totals["untrained"]:
        notes.append(f"{untrained:,} conversations are dropped: all their answers have weight 0")
    if truncated := totals["truncated"]:
        notes.append(f"{truncated:,} {what} of more than {length:,} tokens are truncated")
    if dropped := totals["dropped"]:
        notes.append(f"{dropped:,} {what} are dropped: no answer begins in the first {length:,} tokens")
    return texts, what, notes


class Answers:
    """`Sequences` of conversations ``start`` to ``stop`` (indices) of a folder written by `encode`.

    A conversation is one text, or several (`turns.samples`). For a text with tokens x, ``labels[t]`` is
    x[t + 1] if that token is trained, otherwise -100. Texts of more than ``length`` tokens are truncated, and
    texts without a label are dropped. Raises UserError for an id of ``vocab_size`` or more.

    Attributes:
        conversations: Number of conversations.
        untrained: Number of conversations without a trained answer.
        rewritten: Number of conversations with several texts.
        texts: Number of texts.
        truncated: Number of truncated texts.
        dropped: Number of dropped texts.
    """

    def __init__(self, folder: Path, start: int, stop: int, length: int, vocab_size: int):
        self._ids, self._is_trained, ends, last_texts = _arrays(folder)
        last_texts = np.concatenate([[0], last_texts])[start : stop + 1]
        counts = np.diff(last_texts)
        self.conversations = stop - start
        self.untrained, self.rewritten = int((counts == 0).sum()), int((counts > 1).sum())
        self.texts = int(counts.sum())
        bounds = np.concatenate([[0], ends])[last_texts[0] : last_texts[-1] + 1]
        lengths = np.minimum(np.diff(bounds), length)
        trained_before = np.concatenate([[0], np.cumsum(self._is_trained, dtype=np.int64)])
        starts = bounds[:-1]
        labelled = trained_before[starts + lengths] - trained_before[np.minimum(starts + 1, starts + lengths)]
        kept = labelled > 0
        self._vocab_size = vocab_size
        self._starts = starts[kept]
        self.lengths, self.labelled = lengths[kept], labelled[kept]
        self.truncated, self.dropped = int((np.diff(bounds) > length)[kept].sum()), int((~kept).sum())

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        start = int(self._starts[number])
        stop = start + int(self.lengths[number])
        tokens = self._ids[start:stop].astype(np.int64)
        check_ids(tokens, self._vocab_size)
        labels = np.full(len(tokens), IGNORED, dtype=np.int64)
        labels[:-1] = np.where(self._is_trained[start + 1 : stop], tokens[1:], IGNORED)
        return tokens, labels


def encode(source: Conversations, tokenizer, cache: str | None) -> Path:
    """Encode all conversations into a cache folder and return the folder.

        ids.npy         the ids of all texts, int32
        learnt.npy      mask of the trained tokens, bool
        ends.npy        the end of each text in ids.npy, int64
        last_texts.npy  cumulative number of texts per conversation, int64
        unused.json     unused keys of the data

    The tokenizer must have a chat template. Raises UserError, with file and line, for a line that is not a
    conversation or that the template rejects, and if there are no conversations.
    """
    content = f"{source.fingerprint()} {fingerprint(tokenizer)} {chat_template.fingerprint(tokenizer)} {KIND}"
    key = hashlib.sha256(content.encode()).hexdigest()[:32]

    def build(folder: Path) -> None:
        texts, last_texts, unused = [], [], Unused()
        omitted = Omitted(functools.partial(turns.samples, tokenizer), unused)
        with encoding.running(tokenizer):
            for conversation in source.conversations():
                texts += _encode_conversation(tokenizer, conversation, omitted)
                unused.unread.update(conversation.unread)
                last_texts.append(len(texts))
        if not last_texts:
            raise UserError(f"{source.name} contains no conversations")
        ids, is_trained = ([text[index] for text in texts] for index in range(2))
        np.save(folder / "ids.npy", np.concatenate([*ids, np.zeros(0)]).astype(np.int32))
        np.save(folder / "learnt.npy", np.concatenate([*is_trained, np.zeros(0)]).astype(np.bool_))
        np.save(folder / "ends.npy", np.cumsum([*map(len, ids)], dtype=np.int64))
        np.save(folder / "last_texts.npy", np.array(last_texts, dtype=np.int64))
        unused.save(folder)

    return cached(f"conversations-{key}", build, cache)


def first_question(source: Conversations, tokenizer) -> str | None:
    """The shortest prompt (text before the first answer) of the first conversations, or None."""
    texts = (
        turns.samples(tokenizer, conversation.messages, conversation.tools, conversation.context)
        for conversation in itertools.islice(source.conversations(), QUESTIONS)
    )
    return min((pieces[0][0][0] for pieces in texts if pieces), key=len, default=None)


def count(folder: Path) -> int:
    """The number of conversations in a folder written by `encode`."""
    return len(_arrays(folder)[3])


def _arrays(folder: Path) -> list[np.ndarray]:
    """The arrays that `encode` saved."""
    kinds = {"ids": (np.int32, 1), "learnt": (np.bool_, 1), "ends": (np.int64, 1)}
    return mapped_arrays(folder, kinds | {"last_texts": (np.int64, 1)}, _are_consistent)


def _are_consistent(
    ids: np.ndarray, is_trained: np.ndarray, ends: np.ndarray, last_texts: np.ndarray
) -> bool:
    return len(ids) == len(is_trained) and _counts_up(ends, len(ids)) and _counts_up(last_texts, len(ends))


def _counts_up(limits: np.ndarray, total: int) -> bool:
    """Whether ``limits`` is non-decreasing and ends at ``total``."""
    steps = np.diff(np.concatenate([[0], limits, [total]]))
    return not (steps < 0).any() and steps[-1] == 0


def _encode_conversation(
    tokenizer, conversation: Conversation, omitted: Omitted
) -> list[tuple[np.ndarray, np.ndarray]]:
    messages, tools, context = conversation.messages, conversation.tools, conversation.context
    try:
        samples = turns.samples(tokenizer, messages, tools, context)
        text = "".join(text for pieces in samples for text, _ in pieces)
        whole = turns.samples(tokenizer, messages, tools) if context else samples
        omitted.count(messages, tools, whole, text)
        return [turns.encode(tokenizer, pieces) for pieces in samples]
    except ValueError as error:
        raise UserError(f"{conversation.where}: {error}") from error
