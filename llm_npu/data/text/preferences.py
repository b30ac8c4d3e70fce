"""Preference pairs in .jsonl files: a prompt, the answer that is chosen and the one that is rejected.

    {"prompt": "...", "chosen": "...", "rejected": "..."}
    {"messages": [{"role": "user", "content": "..."}], "chosen": "...", "rejected": "..."}       OpenAI
    {"chosen": [{"role": "user", ...}, {"role": "assistant", ...}], "rejected": [...]}           TRL
    {"conversations": [{"from": "human", ...}], "chosen": {"from": "gpt", ...}, "rejected": ...} ShareGPT
    {"instruction": "...", "input": "...", "chosen": "...", "rejected": "..."}                   Alpaca
    {"src": ["..."], "tgt": [], "response": ["...", "..."], "sort": [1, 0]}                      PaddleFormers

A prompt is text or messages that end with the user's. An answer is text, a message, or a list with one. Whole
conversations as ``chosen`` and ``rejected`` share all messages but the last; those are their prompt.
PaddleFormers' names ``chosen_response`` and ``rejected_response`` are accepted, too. Of ``response`` the one
with the higher ``sort`` is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llm_npu.core.errors import UserError

from .conversations import ROLES, Message, alpaca, check, listed, openai, sharegpt, with_system
from .json_lines import JsonLines


@dataclass(frozen=True)
class Pair:
    """``prompt`` ends with the user's message; ``where`` is the file and line."""

    prompt: list[Message]
    chosen: str
    rejected: str
    where: str


class Preferences(JsonLines):
    """Files of preference pairs; ``documents`` is the text of their messages."""

    stage, content = "dpo", "preference pairs"

    def documents(self) -> Iterator[str]:
        for pair in self.pairs():
            yield from (message["content"] for message in pair.prompt)
            yield from (pair.chosen, pair.rejected)

    def pairs(self) -> Iterator[Pair]:
        """Every pair. ValueError, with file and line, for a line that is none."""
        for where, record in self.records():
            yield _pair(record, where)


def _pair(record: dict, where: str) -> Pair:
    if "response" in record:
        prompt, chosen, rejected = _paddleformers(record, where)
    else:
        answers = _answer(record, "chosen", where), _answer(record, "rejected", where)
        prompt, chosen, rejected = (
            _whole(*answers, where) if _is_whole(answers[0]) else (_prompt(record, where), *answers)
        )
        chosen, rejected = _text(chosen, f"{where}: chosen"), _text(rejected, f"{where}: rejected")
    check(prompt, where)
    if not prompt or prompt[-1]["role"] != "user":
        last = f"the {prompt[-1]['role']}'s message" if prompt else "nothing"
        raise UserError(f"{where}: the prompt ends with {last}; it must end with the user's message")
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if not answer.strip():
            raise UserError(f"{where}: the {name} answer is empty")
        check([{"role": "assistant", "content": answer}], f"{where}: {name}")
    if chosen == rejected:
        raise UserError(f"{where}: the chosen answer and the rejected one are equal, so neither is preferred")
    return Pair(prompt, chosen, rejected, where)


def _answer(record: dict, name: str, where: str) -> object:
    found = record.get(name, record.get(f"{name}_response"))
    if found is None:
        raise UserError(
            f"{where} has {', '.join(record) or 'nothing'}, but no {name} answer; a preference pair needs "
            "chosen and rejected (or PaddleFormers' response and sort)"
        )
    return found


def _is_whole(answer: object) -> bool:
    """Whether it is a conversation that begins with the prompt."""
    first = answer[0] if isinstance(answer, list) and answer else None
    return isinstance(first, dict) and first.get("role") in ("system", "user")


def _whole(chosen: list, rejected: object, where: str) -> tuple[list[Message], object, object]:
    roles = {role: role for role in ROLES}
    both = [
        listed(each, "role", "content", roles, f"{where}: {name}")
        for name, each in (("chosen", chosen), ("rejected", rejected))
    ]
    if not both[1] or both[0][:-1] != both[1][:-1]:
        raise UserError(
            f"{where}: chosen and rejected are conversations that differ before their last messages; they "
            "must have the same prompt"
        )
    return both[0][:-1], both[0][-1:], both[1][-1:]


def _prompt(record: dict, where: str) -> list[Message]:
    prompt = record.get("prompt")
    if isinstance(prompt, str) and prompt:
        return with_system(record.get("system"), [{"role": "user", "content": prompt}])
    if isinstance(prompt, list):
        return with_system(record.get("system"), openai({"messages": prompt}, where))
    if "messages" in record:
        return openai(record, where)
    if "conversations" in record:
        return sharegpt(record, where)
    if "instruction" in record:
        return alpaca(record, where)[:-1]  # without its output
    raise UserError(
        f"{where} has no prompt; give prompt, messages, conversations or instruction, or whole conversations "
        "as chosen and rejected"
    )


def _text(answer: object, where: str) -> str:
    """The text of an answer: text, a message of the assistant, or a list with one."""
    one = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    if isinstance(one, dict):
        is_openai = "content" in one
        role, text = (one.get("role"), one["content"]) if is_openai else (one.get("from"), one.get("value"))
        one = text if role == ("assistant" if is_openai else "gpt") else None
    if not isinstance(one, str):
        raise UserError(
            f"{where} must be text, a message of the assistant, or a list with one; it is {answer!r:.40}"
        )
    return one


def _paddleformers(record: dict, where: str) -> tuple[list[Message], str, str]:
    questions, answers, both, sort = (record.get(name) for name in ("src", "tgt", "response", "sort"))
    questions, answers = ([each] if isinstance(each, str) else each for each in (questions, answers or []))
    if not isinstance(questions, list) or not isinstance(answers, list) or len(questions) != len(answers) + 1:
        raise UserError(f"{where}: src must have one text more than tgt: the last question has two responses")
    both = both if isinstance(both, list) else []
    both = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in both]
    if len(both) != 2 or not all(isinstance(one, str) for one in both):
        raise UserError(f"{where}: response must be two texts, each one answer")
    if not isinstance(sort, list) or len(sort) != 2 or not all(type(one) in (int, float) for one in sort):
        raise UserError(f"{where}: sort must be two numbers, the higher of which marks the chosen response")
    if sort[0] == sort[1]:
        raise UserError(f"{where}: sort is {sort}, so neither response is preferred")
    system = record.get("system")
    if record.get("is_system"):
        system, questions, answers = questions[0], questions[1:], answers[1:]
    turns = [{"role": "user", "content": questions[0]}] if questions else []
    for answer, question in zip(answers, questions[1:], strict=True):
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
    chosen, rejected = both if sort[0] > sort[1] else reversed(both)
    return with_system(system, turns), chosen, rejected
