"""Conversations in .jsonl files, one per line, in the common layouts.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}      ShareGPT
    {"instruction": "...", "input": "...", "output": "..."}                                      Alpaca
    {"query": "...", "response": "..."}                                                          ms-swift
    {"src": "...", "tgt": "..."}, or lists of turns                                              erniekit

Every record may have ``system`` and ``tools``. Further keys:

- Alpaca and ms-swift: ``history``, [[question, answer], ...]
- erniekit: ``label`` (for each answer 1, or 0 for context only), ``is_system`` (the first question is the
  system message), ``context`` with ``system``
- messages: ``weight`` 0, or ``loss`` or ``train`` false, for an answer that is context only

All layouts become messages that end with an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from llm_npu.core.errors import UserError

from .messages import (
    OPENAI_ROLES,
    SHAREGPT_ROLES,
    Message,
    check,
    listed,
    paired,
    tools_of,
    weighed,
    with_system,
)
from .records import Fields, JsonLines, holds


@dataclass(frozen=True)
class Conversation:
    """A conversation that ends with an answer.

    Attributes:
        where: File and line.
        context: Indices of the answers that are not trained.
        unread: Keys of the record that are not used.
    """

    messages: list[Message]
    where: str
    tools: list[dict] | None = None
    context: frozenset[int] = frozenset()
    unread: tuple[str, ...] = ()


class Conversations(JsonLines):
    """Conversation files; ``documents`` is the text of their messages."""

    stage, content = "sft", "conversations"

    def documents(self) -> Iterator[str]:
        for conversation in self.conversations():
            yield from (message["content"] for message in conversation.messages if message["content"])

    def conversations(self) -> Iterator[Conversation]:
        """Yield all conversations. Raises UserError, with file and line, for any other line."""
        for where, record in self.records():
            yield _conversation(Fields(record, where))


def _conversation(fields: Fields) -> Conversation:
    where = fields.where
    messages = LAYOUTS[layout(fields, LAYOUTS)](fields)
    messages = with_system(fields.get("system"), messages, where)
    tools = tools_of(fields)
    messages, context, without_effect = weighed(messages, where)
    check(messages, where)
    if not messages or messages[-1]["role"] != "assistant":
        last = f"ends with the {messages[-1]['role']} message" if messages else "has no messages"
        raise UserError(f"{where} {last}; a conversation must end with an answer to train on")
    return Conversation(messages, where, tools, context, (*fields.unread(), *without_effect))


def layout(fields: Fields, layouts) -> str:
    """The key of ``layouts`` in the record. Raises UserError unless there is exactly one."""
    names = [name for name in layouts if name in fields] or [
        name for name in layouts if fields.get(name) is not None
    ]
    if not names:
        raise UserError(f"{fields.where} has {fields}, but needs one of {', '.join(layouts)}")
    if len(names) > 1:
        raise UserError(f"{fields.where} has {' and '.join(names)}, two conversations; keep one of them")
    return names[0]


def openai(fields: Fields) -> list[Message]:
    return listed(fields.get("messages"), "role", "content", OPENAI_ROLES, f"{fields.where}: messages")


def sharegpt(fields: Fields) -> list[Message]:
    where = f"{fields.where}: conversations"
    return listed(fields.get("conversations"), "from", "value", SHAREGPT_ROLES, where)


def question_of(fields: Fields, *names: str) -> list[Message]:
    """The messages of ``history``, followed by a question: the text of the keys ``names``."""
    history, parts = fields.get("history"), [fields.get(name) for name in names]
    history = history if holds(history) else []
    if not (isinstance(history, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in history)):
        raise UserError(f"{fields.where}: history must be a list of [question, answer]")
    if not all(part is None or isinstance(part, str) for part in parts):
        raise UserError(f"{fields.where}: {' and '.join(names)} must be text")
    return paired([*history, ["\n".join(filter(None, parts)), None]])[:-1]


def question_and_answer(question: Sequence[str], answer: str) -> Callable[[Fields], list[Message]]:
    """The layout with a question in the keys ``question``, and its answer in ``answer``."""
    return lambda fields: [
        *question_of(fields, *question),
        {"role": "assistant", "content": fields.get(answer)},
    ]


alpaca = question_and_answer(("instruction", "input"), "output")
query = question_and_answer(("query",), "response")


def _erniekit(fields: Fields) -> list[Message]:
    where, source, target = fields.where, fields.get("src"), fields.get("tgt")
    if isinstance(source, str) and isinstance(target, str):
        source, target = [source], [target]
    if not (isinstance(source, list) and isinstance(target, list) and len(source) == len(target)):
        raise UserError(f"{where}: src and tgt must be two texts, or two lists of texts of equal length")
    labels = fields.get("label")
    if labels is not None and not (isinstance(labels, list) and len(labels) == len(source)):
        raise UserError(f"{where}: label must be a list with 1 or 0 for each text of tgt")
    messages = paired(zip(source, target, strict=True), labels)
    if is_system(fields) and messages:
        fields.drop("tgt[0]", target[0])
        messages = with_system(messages[0]["content"], messages[2:], where)
    context = fields.get("context")
    if holds(context):
        if not isinstance(context, dict) or any(
            holds(value) for key, value in context.items() if key != "system"
        ):
            raise UserError(f"{where}: context must be an object with system only")
        messages = with_system(context.get("system"), messages, where)
    return messages


def is_system(fields: Fields) -> bool:
    """erniekit's ``is_system``: whether the first text of src is the system message."""
    flag = fields.get("is_system")
    if holds(flag) and flag not in (0, 1):
        raise UserError(f"{fields.where}: is_system is {flag!r:.40}; accepted: 1 and 0")
    return bool(flag)


LAYOUTS = {
    "messages": openai,
    "conversations": sharegpt,
    "instruction": alpaca,
    "src": _erniekit,
    "query": query,
}
