"""Converts conversations to training texts, divided into prompts and trained answers.

    for pieces in turns.samples(tokenizer, messages):
        ids, answers = turns.encode(tokenizer, pieces)

The text before an answer is exactly the model's prompt at inference. Most chat templates render earlier turns
independently of later turns, so one text contains all answers. Some templates rewrite earlier turns (Qwen3's
and DeepSeek-R1's remove the thoughts from earlier answers); then a conversation becomes several texts, and
each answer is trained in one of them.
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

# A generation prompt that opens a thought or contains an empty one.
THOUGHT = re.compile(r"<(?P<tag>[\w:]*th(?:ink|ought)\w*)>\s*(?P<closed></(?P=tag)>\s*)?\Z")
ANOTHER = "choose another template with --chat_template"
_UNIQUE = 8  # characters; a text of this length does not appear in a rendering by chance


def samples(
    tokenizer, messages: Messages, tools: Tools = None, context: AbstractSet[int] = frozenset()
) -> list[Pieces]:
    """The texts of a conversation, in pieces: prompts and trained answers.

    An answer is the text that an assistant message adds to the prompt, including its end marker, or the text
    that the template marks with ``{% generation %}``.

    Args:
        context: Indices of answers that are not trained.

    Raises:
        UserError: The template rejects the messages, or does not render an answer.
    """
    if isinstance(chat_template.source_of(tokenizer), dict):
        pieces = _of_pairs(tokenizer, messages, tools, context)
        return [pieces] if any(trained for _, trained in pieces) else []
    texts: list[Pieces] = []
    text = ""
    for number, message in enumerate(messages):
        if message["role"] != "assistant" or number in context:
            continue
        turn = _turn(tokenizer, messages[: number + 1], tools)
        if not texts or not turn.text.startswith(text) or turn.marks[0][0] < len(text):
            texts.append([])
            text = ""
        pieces = _cut(turn, len(text))
        if texts[-1] and not (texts[-1][-1][1] or pieces[0][1]):
            # The text after an answer's marks, and the next prompt.
            pieces[0] = (texts[-1].pop()[0] + pieces[0][0], False)
        texts[-1] += pieces
        text = turn.text
    return texts


def encode(tokenizer, pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of a text, int64 [T], and a mask of the trained tokens, bool [T].

    The text is encoded as a whole if its pieces end between tokens, otherwise piece by piece. Either way the
    tokens before an answer equal the encoding of the prompt alone, as in inference.
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
    """The prompt of the last message (an answer) and the answer's text. Raises UserError as `samples`."""
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

    The prompt is encoded alone, as in inference. Raises UserError as `samples`, and if the template renders
    different prompts for the answers.
    """
    rendered = [last_answer(tokenizer, [*prompt, answer], tools) for answer in answers]
    prompts = {before for before, _ in rendered}
    if len(prompts) > 1:
        raise UserError(f"the chat template changes the prompt with the answer; {ANOTHER}")
    (text,) = prompts
    ends = [answer for _, answer in rendered]
    prompt_ids, *whole = chat_template.ids_of(tokenizer, [text, *(text + end for end in ends)])
    separate = chat_template.ids_of(tokenizer, ends)
    answer_ids = [
        ids[len(prompt_ids) :] if ids[: len(prompt_ids)] == prompt_ids else alone
        for ids, alone in zip(whole, separate, strict=True)
    ]
    return [np.array(ids, dtype=np.int64) for ids in (prompt_ids, *answer_ids)]


class Omitted:
    """Counts, in ``unused``, the keys and messages that the chat template does not use.

    ``render(messages, tools)`` returns the training texts of a conversation. A key or message is unused if
    removing it does not change the result.
    """

    def __init__(self, render: Callable[[Messages, Tools], object], unused: Unused):
        self._render, self._counts = render, unused.omitted
        self._in_use: dict[tuple[str, ...], frozenset[int]] = {}

    def count(self, messages: Messages, tools: Tools, result: object, text: str, first: int = 0) -> None:
        """Count for one conversation.

        Args:
            result: The result of ``render``.
            text: All text in ``result``.
            first: Messages before this index are not counted.
        """
        keys = {key for message in messages[first:] for key in message} - {"role", "content"}
        for key in sorted(keys):
            without = [{name: m[name] for name in m if name != key} for m in messages[first:]]
            if self._renders([*messages[:first], *without], tools, result):
                self._counts[f"messages[].{key}"] += sum(key in message for message in messages[first:])
        if tools and not first and self._renders(messages, None, result):
            self._counts["tools"] += 1
        for number, message in enumerate(messages[first:], first):
            content = message["content"]
            if not isinstance(content, str) or not content.strip():
                continue
            if (
                content.strip() in text
                if len(content) >= _UNIQUE
                else number in self._messages_in_use(messages, tools)
            ):
                continue
            if self._renders(_replaced(messages, number, "-" * _UNIQUE), tools, result):
                self._counts[f"the {message['role']} message"] += 1

    def _renders(self, messages: Messages, tools: Tools, result: object) -> bool:
        try:
            return self._render(messages, tools) == result
        except UserError:
            return False

    def _messages_in_use(self, messages: Messages, tools: Tools) -> frozenset[int]:
        """The indices of messages used by the template; equal for all conversations with these roles."""
        roles = tuple(message["role"] for message in messages)
        if roles not in self._in_use:
            plain = [{"role": role, "content": "-" * _UNIQUE} for role in roles]
            try:
                result = self._render(plain, tools)
            except UserError:
                return frozenset()
            changed = (_replaced(plain, number, "+" * _UNIQUE) for number in range(len(plain)))
            self._in_use[roles] = frozenset(
                number
                for number, replaced in enumerate(changed)
                if not self._renders(replaced, tools, result)
            )
        return self._in_use[roles]


def _replaced(messages: Messages, number: int, content: str) -> list[Message]:
    return [*messages[:number], {**messages[number], "content": content}, *messages[number + 1 :]]


def _turn(tokenizer, messages: Messages, tools: Tools) -> Rendered:
    """The text up to the last message, an answer, with the marks of this answer."""
    try:
        before, after = _before_and_after(tokenizer, messages, tools)
    except UserError:
        as_text = with_text_arguments(messages)  # DeepSeek-R1's template expects call arguments as text
        if as_text == list(messages):
            raise
        before, after = _before_and_after(tokenizer, as_text, tools)
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
                f"the chat template renders answer {number} after a different context than its prompt; "
                f"{ANOTHER}"
            )
        turn = Rendered(after.text, marks)
    if all(start == stop for start, stop in turn.marks):
        raise UserError(f"the chat template does not render answer {number}; {ANOTHER}")
    return turn


def _before_and_after(tokenizer, messages: Messages, tools: Tools) -> tuple[Rendered, Rendered]:
    before = chat_template.rendered(tokenizer, messages[:-1], True, tools)
    return before, chat_template.rendered(tokenizer, messages, False, tools)


def _with_thought(before: str, after: Rendered, marks, message: Message) -> Rendered | None:
    """The answer to a prompt that opens a thought, for templates that remove thoughts from answers.

    The answer begins with its own or an empty thought. Returns None for other prompts.
    """
    opened = THOUGHT.search(before)
    if opened is None or not after.text.startswith(before[: opened.start()]):
        return None
    tag, kept = opened["tag"], after.text[opened.start() :]
    thought = "" if opened["closed"] else f"{_thought(message, tag)}\n</{tag}>\n\n"
    if kept.startswith(f"<{tag}>"):  # the template kept the thought, with different whitespace
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
    """The text from ``start`` on, cut at the marks."""
    pieces: Pieces = []
    for begin, end in turn.marks:
        pieces += [(turn.text[start:begin], False), (turn.text[begin:end], True)]
        start = end
    return [(text, trained) for text, trained in [*pieces, (turn.text[start:], False)] if text]


def _of_pairs(tokenizer, messages: Messages, tools: Tools, context: AbstractSet[int]) -> Pieces:
    """The pieces for PaddleNLP's templates, which only support question-answer pairs."""
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
        raise UserError(
            f"PaddleNLP's chat template needs alternating user and assistant messages, not {', '.join(roles)}"
        )
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
