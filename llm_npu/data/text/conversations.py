"""Conversations in .jsonl files, one per line, in the common layouts.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}      ShareGPT
    {"instruction": "...", "input": "...", "output": "..."}                                      Alpaca
    {"src": "...", "tgt": "..."}, or lists of turns                                              PaddleNLP

Alpaca records may have ``system`` and ``history`` ([[question, answer], ...]), PaddleNLP records a
``context`` with ``system``. All become lists of {"role", "content"} that end with an answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from llm_npu.core.errors import UserError

from .json_lines import JsonLines

ROLES = ("system", "user", "assistant")
SHAREGPT_ROLES = {"system": "system", "human": "user", "gpt": "assistant"}

Message = dict[str, str]


class Conversations(JsonLines):
    """Conversation files; ``documents`` is the text of their messages."""

    stage, content = "sft", "conversations"

    def documents(self) -> Iterator[str]:
        for _, messages in self.conversations():
            yield from (message["content"] for message in messages if message["content"])

    def conversations(self) -> Iterator[tuple[str, list[Message]]]:
        """(file and line, messages) of every conversation.

        ValueError, with file and line, for a line that is not a conversation.
        """
        for where, record in self.records():
            yield where, _messages(record, where)


def find(input_dir: str) -> Conversations:
    """The conversations in a .jsonl file, or in the .jsonl files of a folder (and its train.json, dev.json).

    ValueError if there are none.
    """
    return Conversations.find(input_dir)


def _messages(record: dict, where: str) -> list[Message]:
    for name, convert in LAYOUTS.items():
        if name in record:
            found = convert(record, where)
            break
    else:
        raise UserError(
            f"{where} has {', '.join(record) or 'nothing'}, but needs one of {', '.join(LAYOUTS)}"
        )
    check(found, where)
    if not found or found[-1]["role"] != "assistant":
        last = f"ends with the {found[-1]['role']}'s message" if found else "has no messages"
        raise UserError(f"{where} {last}; a conversation must end with an answer to train on")
    return found


def openai(record: dict, where: str) -> list[Message]:
    roles = {role: role for role in ROLES}
    return listed(record["messages"], "role", "content", roles, f"{where}: messages")


def sharegpt(record: dict, where: str) -> list[Message]:
    found = listed(record["conversations"], "from", "value", SHAREGPT_ROLES, f"{where}: conversations")
    return with_system(record.get("system"), found)


def alpaca(record: dict, where: str) -> list[Message]:
    question, more, answer = record["instruction"], record.get("input") or "", record.get("output")
    history = record.get("history") or []
    if not (isinstance(history, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in history)):
        raise UserError(f"{where}: history must be a list of [question, answer]")
    if not (isinstance(question, str) and isinstance(more, str)):
        raise UserError(f"{where}: instruction and input must be text")
    turns = [*history, [f"{question}\n{more}" if more else question, answer]]
    return with_system(record.get("system"), _paired(turns))


def _paddlenlp(record: dict, where: str) -> list[Message]:
    source, target = record["src"], record.get("tgt")
    if isinstance(source, str) and isinstance(target, str):
        source, target = [source], [target]
    if not (isinstance(source, list) and isinstance(target, list) and len(source) == len(target)):
        raise UserError(f"{where}: src and tgt must be two texts, or two lists of equally many texts")
    context = record.get("context") or {}
    system = context.get("system") if isinstance(context, dict) else None
    return with_system(system, _paired(zip(source, target, strict=True)))


LAYOUTS = {"messages": openai, "conversations": sharegpt, "instruction": alpaca, "src": _paddlenlp}


def listed(found, role: str, content: str, roles: dict[str, str], where: str) -> list[Message]:
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{where} must be a list of objects with {role} and {content}")
    for one in found:
        if one.get(role) not in roles:
            raise UserError(f"{where}: {role} is {one.get(role)!r}; accepted: {', '.join(roles)}")
    return [{"role": roles[one[role]], "content": one.get(content)} for one in found]


def _paired(turns) -> list[Message]:
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for turn in turns for role, text in zip(roles, turn, strict=True)]


def with_system(system, messages: list[Message]) -> list[Message]:
    return [{"role": "system", "content": system}, *messages] if system else messages


def check(messages: list[Message], where: str) -> None:
    """UserError for a message that is no text, and for a system's message that is not the first."""
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        if not isinstance(content, str):
            raise UserError(f"{where}: the {role}'s message {number + 1} must be text, not {content!r:.40}")
        try:
            content.encode()
        except UnicodeEncodeError as error:  # JSON can encode an unpaired surrogate
            raise UserError(f"{where}: message {number + 1} is not valid Unicode") from error
        if role == "system" and number:
            raise UserError(f"{where}: the system's message must be the first, not number {number + 1}")
