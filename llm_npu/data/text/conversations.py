"""Conversations in .jsonl files, one per line, in the common layouts.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}      ShareGPT
    {"instruction": "...", "input": "...", "output": "..."}                                      Alpaca
    {"src": "...", "tgt": "..."}, or lists of turns                                              PaddleNLP

Alpaca records may have ``system`` and ``history`` ([[question, answer], ...]), PaddleNLP records a
``context`` with ``system``. All become lists of {"role", "content"} that end with an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json

from .corpus import Corpus, decoded, opened

ROLES = ("system", "user", "assistant")
SHAREGPT_ROLES = {"system": "system", "human": "user", "gpt": "assistant"}
PARTS = ("train.json", "dev.json")  # PaddleNLP's names; also one conversation per line

Message = dict[str, str]


@dataclass(frozen=True)
class Conversations(Corpus):
    """Conversation files; ``documents`` is the text of their messages."""

    def documents(self) -> Iterator[str]:
        for _, messages in self.conversations():
            yield from (message["content"] for message in messages if message["content"])

    def conversations(self) -> Iterator[tuple[str, list[Message]]]:
        """(file and line, messages) of every conversation.

        ValueError, with file and line, for a line that is not a conversation.
        """
        for file in self.files:
            with opened(file) as stream:
                for number, line in enumerate(stream, start=1):
                    if line.strip():
                        where = f"{file}, line {number}"
                        yield where, _messages(_record(line, where), where)

    def parts(self) -> tuple[Conversations, Conversations | None]:
        """The training conversations, and those held out in dev.jsonl or dev.json (None without such a
        file)."""
        held_out = tuple(file for file in self.files if file.stem == "dev")
        if not held_out:
            return self, None
        rest = tuple(file for file in self.files if file not in held_out)
        if not rest:
            raise UserError(f"{self.name} contains only {held_out[0].name}, and no training data")
        return Conversations(self.name, self.root, rest), Conversations(self.name, self.root, held_out)


def find(input_dir: str) -> Conversations:
    """The conversations in a .jsonl file, or in the .jsonl files of a folder (and its train.json, dev.json).

    ValueError if there are none.
    """
    path = Path(input_dir).expanduser()
    if path.is_dir():
        files = sorted({*path.glob("*.jsonl"), *(path / name for name in PARTS if (path / name).is_file())})
        if not files:
            raise UserError(f"{path} contains no .jsonl file; --stage sft reads conversations from .jsonl")
        return Conversations(str(path), path, tuple(files))
    if not path.exists():
        raise UserError(f"{path} does not exist; --input_dir takes a .jsonl file or a folder of them")
    if path.suffix not in (".jsonl", ".json"):
        raise UserError(f"{path} has the suffix {path.suffix!r}, but --stage sft reads .jsonl")
    return Conversations(str(path), path.parent, (path,))


def _record(line: bytes, where: str) -> dict:
    try:
        record = plain_json.loads(decoded(line, "utf-8-sig", where))
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error.msg}; write one conversation per line") from error
    if not isinstance(record, dict):
        raise UserError(f"{where} must be an object, not a {type(record).__name__}")
    return record


def _messages(record: dict, where: str) -> list[Message]:
    for name, convert in LAYOUTS.items():
        if name in record:
            found = convert(record, where)
            break
    else:
        raise UserError(
            f"{where} has {', '.join(record) or 'nothing'}, but needs one of {', '.join(LAYOUTS)}"
        )
    _check(found, where)
    return found


def _openai(record: dict, where: str) -> list[Message]:
    roles = {role: role for role in ROLES}
    return _listed(record["messages"], "role", "content", roles, f"{where}: messages")


def _sharegpt(record: dict, where: str) -> list[Message]:
    found = _listed(record["conversations"], "from", "value", SHAREGPT_ROLES, f"{where}: conversations")
    return _with_system(record.get("system"), found)


def _alpaca(record: dict, where: str) -> list[Message]:
    question, more, answer = record["instruction"], record.get("input") or "", record.get("output")
    history = record.get("history") or []
    if not (isinstance(history, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in history)):
        raise UserError(f"{where}: history must be a list of [question, answer]")
    if not (isinstance(question, str) and isinstance(more, str)):
        raise UserError(f"{where}: instruction and input must be text")
    turns = [*history, [f"{question}\n{more}" if more else question, answer]]
    return _with_system(record.get("system"), _paired(turns))


def _paddlenlp(record: dict, where: str) -> list[Message]:
    source, target = record["src"], record.get("tgt")
    if isinstance(source, str) and isinstance(target, str):
        source, target = [source], [target]
    if not (isinstance(source, list) and isinstance(target, list) and len(source) == len(target)):
        raise UserError(f"{where}: src and tgt must be two texts, or two lists of equally many texts")
    context = record.get("context") or {}
    system = context.get("system") if isinstance(context, dict) else None
    return _with_system(system, _paired(zip(source, target, strict=True)))


LAYOUTS = {"messages": _openai, "conversations": _sharegpt, "instruction": _alpaca, "src": _paddlenlp}


def _listed(found, role: str, content: str, roles: dict[str, str], where: str) -> list[Message]:
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{where} must be a list of objects with {role} and {content}")
    for one in found:
        if one.get(role) not in roles:
            raise UserError(f"{where}: {role} is {one.get(role)!r}; accepted: {', '.join(roles)}")
    return [{"role": roles[one[role]], "content": one.get(content)} for one in found]


def _paired(turns) -> list[Message]:
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for turn in turns for role, text in zip(roles, turn, strict=True)]


def _with_system(system, messages: list[Message]) -> list[Message]:
    return [{"role": "system", "content": system}, *messages] if system else messages


def _check(messages: list[Message], where: str) -> None:
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
    if not messages or messages[-1]["role"] != "assistant":
        last = f"ends with the {messages[-1]['role']}'s message" if messages else "has no messages"
        raise UserError(f"{where} {last}; a conversation must end with an answer to train on")
