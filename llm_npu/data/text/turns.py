"""Conversations -> the texts that are trained, each with the answers in it.

    for pieces in turns.samples(tokenizer, messages):
        ids, answers = turns.encode(tokenizer, pieces)

Every answer is trained in the context that the chat template gives it: the text before it is what inference
shows the model. Most templates write earlier turns the same whatever follows, so that one text has all
answers. Where a template rewrites them (Qwen3's and DeepSeek-R1's leave the thoughts out of earlier answers),
a conversation becomes several texts, and each answer is trained in one of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet

import numpy as np

from llm_npu.core.errors import UserError

from . import chat_template
from .chat_template import Messages, Rendered
from .messages import Message, with_text_arguments
from .records import Unused

Pieces = list[tuple[str, bool]]  # (text, is trained)
Tools = Sequence[dict] | None

# A generation prompt that opens a thought, or has an empty one.
THOUGHT = re.compile(r"<(?P<tag>[\w:]*th(?:ink|ought)\w*)>\s*(?P<closed></(?P=tag)>\s*)?\Z")
ANOTHER = "choose another template with --chat_template"
_SURE = 8  # characters: a text this long stands in a rendering only if the template has put it there


def samples(
    tokenizer, messages: Messages, tools: Tools = None, context: AbstractSet[int] = frozenset()
) -> list[Pieces]:
    """The texts of a conversation in pieces, which are prompts and what is trained.

    An answer is what the assistant's message adds to the prompt, its end marker included, or what the
    template marks with ``{% generation %}``. Answers whose indices are in ``context`` are not trained.
    ValueError if the template rejects the messages, or leaves nothing of an answer.
    """
    if isinstance(chat_template.source_of(tokenizer), dict):
        pieces = _of_pairs(tokenizer, messages, tools, context)
        return [pieces] if any(trained for _, trained in pieces) else []
    found: list[Pieces] = []
    text = ""
    for number, message in enumerate(messages):
        if message["role"] != "assistant" or number in context:
            continue
        turn = _turn(tokenizer, messages[: number + 1], tools)
        if not found or not turn.text.startswith(text) or turn.marks[0][0] < len(text):
            found.append([])
            text = ""
        cut = _cut(turn, len(text))
        if found[-1] and not (
            found[-1][-1][1] or cut[0][1]
        ):  # what follows an answer's marks, and the next prompt
            cut[0] = (found[-1].pop()[0] + cut[0][0], False)
        found[-1] += cut
        text = turn.text
    return found


def encode(tokenizer, pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of a text, int64 [T], and a mask of the trained tokens, bool [T].

    The whole text is tokenised at once if its pieces end between tokens, otherwise piece by piece: either way
    the tokens before an answer are those of the prompt alone, as in inference.
    """
    texts = [text for text, _ in pieces]
    prefixes = chat_template.ids_of(tokenizer, list(itertools.accumulate(texts)))
    whole = prefixes[-1]
    if all(whole[: len(prefix)] == prefix for prefix in prefixes):
        lengths = np.diff([0, *map(len, prefixes)])
        ids = whole
    else:
        separate = chat_template.ids_of(tokenizer, texts)
        lengths = [*map(len, separate)]
        ids = list(itertools.chain.from_iterable(separate))
    trained = np.repeat([trained for _, trained in pieces], lengths)
    return np.array(ids, dtype=np.int64), trained


def last_answer(tokenizer, messages: Messages, tools: Tools = None) -> tuple[str, str]:
    """The text before the last message, which is an answer, and the answer's. ValueError as `samples`."""
    if isinstance(chat_template.source_of(tokenizer), dict):
        *before, (answer, _) = _of_pairs(tokenizer, messages, tools, frozenset())
        return "".join(text for text, _ in before), answer
    turn = _turn(tokenizer, messages, tools)
    start, stop = turn.marks[0][0], turn.marks[-1][1]
    return turn.text[:start], turn.text[start:stop]


def encode_answers(
    tokenizer, prompt: Messages, answers: Sequence[Message], tools: Tools = None
) -> list[np.ndarray]:
    """Token ids of the prompt, int64 [T], and of each answer to it, with its end marker.

    The ids of the prompt are those of the prompt alone, as in inference. ValueError as `samples`, and for a
    template that changes the prompt with the answer.
    """
    both = [last_answer(tokenizer, [*prompt, answer], tools) for answer in answers]
    texts = {before for before, _ in both}
    if len(texts) > 1:
        raise UserError(f"the chat template changes the prompt with the answer; {ANOTHER}")
    (text,) = texts
    ends = [answer for _, answer in both]
    start, *whole = chat_template.ids_of(tokenizer, [text, *(text + end for end in ends)])
    separate = chat_template.ids_of(tokenizer, ends)
    found = [
        ids[len(start) :] if ids[: len(start)] == start else alone
        for ids, alone in zip(whole, separate, strict=True)
    ]
    return [np.array(ids, dtype=np.int64) for ids in (start, *found)]


class Omitted:
    """Counts in ``unused`` what the chat template leaves out of conversations.

    ``render(messages, tools)``: what is trained of a conversation, in a form that can be compared.
    """

    def __init__(self, render: Callable[[Messages, Tools], object], unused: Unused):
        self._render, self._counts = render, unused.omitted
        self._in_use: dict[tuple[str, ...], frozenset[int]] = {}

    def count(self, messages: Messages, tools: Tools, result: object, text: str, first: int = 0) -> None:
        """``result``: of ``render``; ``text``: all text in it; messages before ``first`` are not counted."""
        keys = {key for message in messages[first:] for key in message} - {"role", "content"}
        for key in sorted(keys):
            without = [{name: each for name, each in m.items() if name != key} for m in messages[first:]]
            if self._gives([*messages[:first], *without], tools, result):
                self._counts[f"messages[].{key}"] += sum(key in message for message in messages[first:])
        if tools and not first and self._gives(messages, None, result):
            self._counts["tools"] += 1
        for number, message in enumerate(messages[first:], first):
            content = message["content"]
            if not isinstance(content, str) or not content.strip():
                continue
            if content.strip() in text if len(content) >= _SURE else number in self._used(messages, tools):
                continue
            if self._gives(_replaced(messages, number, "-" * _SURE), tools, result):
                self._counts[f"the {message['role']}'s message"] += 1

    def _gives(self, messages: Messages, tools: Tools, result: object) -> bool:
        try:
            return self._render(messages, tools) == result
        except UserError:
            return False

    def _used(self, messages: Messages, tools: Tools) -> frozenset[int]:
        """The messages whose text the template uses; the same for all conversations with these roles."""
        roles = tuple(message["role"] for message in messages)
        if roles not in self._in_use:
            plain = [{"role": role, "content": "-" * _SURE} for role in roles]
            try:
                result = self._render(plain, tools)
            except UserError:
                return frozenset()
            changed = (_replaced(plain, number, "+" * _SURE) for number in range(len(plain)))
            self._in_use[roles] = frozenset(
                number for number, each in enumerate(changed) if not self._gives(each, tools, result)
            )
        return self._in_use[roles]


def _replaced(messages: Messages, number: int, content: str) -> list[Message]:
    return [*messages[:number], {**messages[number], "content": content}, *messages[number + 1 :]]


def _turn(tokenizer, messages: Messages, tools: Tools) -> Rendered:
    """The text up to the last message, which is an answer; its marks are those of this answer."""
    try:
        before, after = _both(tokenizer, messages, tools)
    except UserError:
        as_text = with_text_arguments(messages)  # R1's template expects the arguments of calls so
        if as_text == list(messages):
            raise
        before, after = _both(tokenizer, as_text, tools)
    number = sum(message["role"] == "assistant" for message in messages)
    marked = chat_template.marks_answers(tokenizer)
    marks = after.marks[len(before.marks) :]
    if marked and not marks:
        raise UserError(f"the chat template marks no part of answer {number} with generation; {ANOTHER}")
    if after.text.startswith(before.text):
        turn = Rendered(after.text, marks or ((len(before.text), len(after.text)),))
    elif (turn := _with_thought(before.text, after, marks, messages[-1])) is None:
        if not marked:
            raise UserError(
                f"the chat template writes answer {number} in another context than its prompt for an answer; "
                f"{ANOTHER}"
            )
        turn = Rendered(after.text, marks)
    if all(start == stop for start, stop in turn.marks):
        raise UserError(f"the chat template leaves nothing of answer {number}; {ANOTHER}")
    return turn


def _both(tokenizer, messages: Messages, tools: Tools) -> tuple[Rendered, Rendered]:
    before = chat_template.rendered(tokenizer, messages[:-1], True, tools)
    return before, chat_template.rendered(tokenizer, messages, False, tools)


def _with_thought(before: str, after: Rendered, marks, message: Message) -> Rendered | None:
    """The answer after a prompt that opens its thought, which the template leaves out of answers.

    The answer begins with its thought, or an empty one. None for other prompts.
    """
    opened = THOUGHT.search(before)
    if opened is None or not after.text.startswith(before[: opened.start()]):
        return None
    tag, kept = opened["tag"], after.text[opened.start() :]
    thought = "" if opened["closed"] else f"{_thought(message, tag)}\n</{tag}>\n\n"
    if kept.startswith(f"<{tag}>"):  # it is there, with other blanks around it
        if opened["closed"]:
            return None
        thought, kept = "", kept.removeprefix(f"<{tag}>")
    rest = kept.lstrip("\n")
    text = before + thought + rest
    moved = len(text) - len(after.text)
    if not marks:
        return Rendered(text, ((len(before), len(text)),))
    first, *others = ((start + moved, stop + moved) for start, stop in marks)
    return Rendered(text, ((len(before), first[1]), *others))


def _thought(message: Message, tag: str) -> str:
    thought, content = message.get("reasoning_content"), message["content"] or ""
    if not isinstance(thought, str):
        thought = content.split(f"</{tag}>")[0].split(f"<{tag}>")[-1] if f"</{tag}>" in content else ""
    return thought.strip("\n")


def _cut(turn: Rendered, start: int) -> Pieces:
    """The text from ``start`` on, at the marks."""
    pieces: Pieces = []
    for begin, end in turn.marks:
        pieces += [(turn.text[start:begin], False), (turn.text[begin:end], True)]
        start = end
    return [(text, trained) for text, trained in [*pieces, (turn.text[start:], False)] if text]


def _of_pairs(tokenizer, messages: Messages, tools: Tools, context: AbstractSet[int]) -> Pieces:
    """The pieces of PaddleNLP's templates, which support question-answer pairs only."""
    with chat_template.rendering():
        pieces = list(_pairs(tokenizer.chat_template, messages))
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    return [
        (text, index % 2 == 1 and answers[index // 2] not in context)
        for index, (text, _) in enumerate(pieces)
    ]


def _pairs(template, messages: Messages) -> Iterator[tuple[str, bool]]:
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    turns = messages[system is not None :]
    roles = [message["role"] for message in turns]
    if roles != ["user", "assistant"] * (len(turns) // 2) or any(m["content"] is None for m in turns):
        raise UserError(f"PaddleNLP's chat template needs user and assistant in turn, not {', '.join(roles)}")
    if system is not None and template.system is None:
        raise UserError("the chat template has no place for a system message")
    context = {"is_training": True} | ({"system": system} if system is not None else {})
    text = template.render_system(context)
    for index in range(0, len(turns), 2):
        pair = [turns[index]["content"], turns[index + 1]["content"]]
        position = {"is_first": index == 0, "is_last": index + 2 == len(turns)}
        question, answer = template.render_conversation(pair, index // 2, context | position)
        yield text + question, False
        yield answer, True
        text = ""
