"""Preference pairs in .jsonl files: a prompt, the answer that is chosen and the one that is rejected.

    {"prompt": "...", "chosen": "...", "rejected": "..."}
    {"messages": [{"role": "user", "content": "..."}], "chosen": "...", "rejected": "..."}       OpenAI
    {"chosen": [{"role": "user", ...}, {"role": "assistant", ...}], "rejected": [...]}           TRL
    {"conversations": [{"from": "human", ...}], "chosen": {"from": "gpt", ...}, "rejected": ...} ShareGPT
    {"instruction": "...", "input": "...", "chosen": "...", "rejected": "..."}                   Alpaca
    {"messages": [..., {"role": "assistant", ...}], "rejected_response": "..."}                  ms-swift
    {"query": "...", "response": "...", "rejected_response": "..."}                              ms-swift
    {"src": ["..."], "tgt": [], "response": ["...", "..."], "sort": [1, 0]}                      erniekit

A prompt is text or messages that end with the user's. An answer is text, a message, or a list with one. Whole
conversations as ``chosen`` and ``rejected`` share all messages but the last; those are their prompt.
PaddleFormers' names ``chosen_response`` and ``rejected_response`` are accepted as well. Of ``response`` the
one with the higher ``sort`` is chosen. ``system`` and ``tools`` are as in ``conversations``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from llm_npu.core.errors import UserError

from .conversations import asked, is_system, layout, openai, query, sharegpt
from .messages import (
    OPENAI_ROLES,
    SHAREGPT_ROLES,
    Message,
    check,
    listed,
    tools_of,
    weighed,
    with_system,
)
from .records import Fields, JsonLines


@dataclass(frozen=True)
class Pair:
    """``prompt`` ends with the user's message, or a tool's; ``where`` is the file and line.

    ``chosen`` and ``rejected`` are the assistant's messages. ``unread``: keys that no reader uses.
    """

    prompt: list[Message]
    chosen: Message
    rejected: Message
    where: str
    tools: list[dict] | None = None
    unread: tuple[str, ...] = ()


class Preferences(JsonLines):
    """Files of preference pairs; ``documents`` is the text of their messages."""

    stage, content = "dpo", "preference pairs"

    def documents(self) -> Iterator[str]:
        for pair in self.pairs():
            messages = (*pair.prompt, pair.chosen, pair.rejected)
            yield from (message["content"] for message in messages if message["content"])

    def pairs(self) -> Iterator[Pair]:
        """Every pair. ValueError, with file and line, for a line that is none."""
        for where, record in self.records():
            yield _pair(Fields(record, where))


def _pair(fields: Fields) -> Pair:
    where = fields.where
    read = _erniekit if "sort" in fields else _of_chosen_and_rejected
    prompt, chosen, rejected = read(fields)
    prompt = with_system(fields.get("system"), prompt, where)
    tools = tools_of(fields)
    (*prompt, chosen, rejected), context, without_effect = weighed([*prompt, chosen, rejected], where)
    if context & {len(prompt), len(prompt) + 1}:
        raise UserError(f"{where}: an answer of the pair has weight 0; remove the weight, or the line")
    check(prompt, where)
    if not prompt or prompt[-1]["role"] not in ("user", "tool"):
        last = f"the {prompt[-1]['role']}'s message" if prompt else "nothing"
        raise UserError(f"{where}: the prompt ends with {last}; it must end with the user's message")
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        check([answer], f"{where}: {name}")
        if not (answer["content"] or "").strip() and "tool_calls" not in answer:
            raise UserError(f"{where}: the {name} answer is empty")
    if chosen == rejected:
        raise UserError(f"{where}: the chosen answer and the rejected one are equal, so neither is preferred")
    return Pair(prompt, chosen, rejected, where, tools, (*fields.unread(), *without_effect))


def _of_chosen_and_rejected(fields: Fields) -> tuple[list[Message], Message, Message]:
    where = fields.where
    messages = None
    if fields.get("chosen", fields.get("chosen_response")) is None:
        messages = _answered(fields)
    chosen = messages[-1] if messages else _answer(fields, "chosen", "chosen_response")
    rejected = _answer(fields, "rejected", "rejected_response")
    if messages:
        return messages[:-1], chosen, _message(rejected, f"{where}: rejected")
    if _is_whole(chosen):
        return _whole(chosen, rejected, fields)
    prompt = _prompt(fields)
    return prompt, *(
        _message(answer, f"{where}: {name}") for name, answer in (("chosen", chosen), ("rejected", rejected))
    )


def _answered(fields: Fields) -> list[Message] | None:
    """The conversation that ends with the chosen answer, as in ms-swift's files; None without one."""
    names = [name for name in ANSWERED if name in fields]
    messages = ANSWERED[layout(fields, ANSWERED)](fields) if names else []
    return messages if messages and messages[-1]["role"] == "assistant" else None


def _answer(fields: Fields, *names: str) -> object:
    given = [name for name in names if fields.get(name) is not None]
    if not given:
        raise UserError(
            f"{fields.where} has {fields}, but no {names[0]} answer; a preference pair needs chosen and "
            "rejected (or erniekit's response and sort)"
        )
    if len(given) > 1:
        raise UserError(f"{fields.where} has {' and '.join(given)}; keep one of them")
    return fields.get(given[0])


def _is_whole(answer: object) -> bool:
    """Whether it is a conversation that begins with the prompt."""
    first = answer[0] if isinstance(answer, list) and answer else None
    return isinstance(first, dict) and first.get("role") in ("system", "user")


def _whole(chosen: list, rejected: object, fields: Fields) -> tuple[list[Message], Message, Message]:
    both = [
        listed(each, "role", "content", OPENAI_ROLES, f"{fields.where}: {name}")
        for name, each in (("chosen", chosen), ("rejected", rejected))
    ]
    if not both[1] or both[0][:-1] != both[1][:-1]:
        raise UserError(
            f"{fields.where}: chosen and rejected are conversations that differ before their last messages; "
            "they must have the same prompt"
        )
    prompt, answers = both[0][:-1], [each[-1] for each in both]
    for name, answer in zip(("chosen", "rejected"), answers, strict=True):
        if answer["role"] != "assistant":
            raise UserError(f"{fields.where}: {name} ends with the {answer['role']}'s message, not an answer")
    texts = {message["content"] for message in prompt if isinstance(message["content"], str)}
    if fields.get("prompt") not in (None, *texts):  # TRL's data sets repeat the question there
        raise UserError(f"{fields.where}: prompt is not in the conversations chosen and rejected; remove it")
    return prompt, *answers


def _prompt(fields: Fields) -> list[Message]:
    if all(fields.get(name) in (None, "") for name in PROMPTS):
        raise UserError(
            f"{fields.where} has no prompt; give prompt, messages, conversations or instruction, or whole "
            "conversations as chosen and rejected"
        )
    return PROMPTS[layout(fields, PROMPTS)](fields)


def _of_prompt(fields: Fields) -> list[Message]:
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return listed(prompt, "role", "content", OPENAI_ROLES, f"{fields.where}: prompt")


ANSWERED = {"messages": openai, "conversations": sharegpt, "query": query}
PROMPTS = {
    "prompt": _of_prompt,
    "messages": openai,
    "conversations": sharegpt,
    "instruction": lambda fields: asked(fields, "instruction", "input"),
    "query": lambda fields: asked(fields, "query"),
}


def _message(answer: object, where: str) -> Message:
    """An answer: text, a message of the assistant, or a list with one."""
    one = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    if isinstance(one, str):
        return {"role": "assistant", "content": one}
    if isinstance(one, dict):
        keys = ("from", "value", SHAREGPT_ROLES) if "from" in one else ("role", "content", OPENAI_ROLES)
        (message,) = listed([one], *keys, where)
        if message["role"] == "assistant":
            return message
    raise UserError(
        f"{where} must be text, a message of the assistant, or a list with one; it is {answer!r:.40}"
    )


def _erniekit(fields: Fields) -> tuple[list[Message], Message, Message]:
    where = fields.where
    questions, answers, both, sort = (fields.get(name) for name in ("src", "tgt", "response", "sort"))
    questions, answers = ([each] if isinstance(each, str) else each for each in (questions, answers or []))
    if not isinstance(questions, list) or not isinstance(answers, list) or len(questions) != len(answers) + 1:
        raise UserError(f"{where}: src must have one text more than tgt: the last question has two responses")
    both = both if isinstance(both, list) else []
    both = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in both]
    if len(both) != 2 or not all(isinstance(one, str) for one in both):
        raise UserError(f"{where}: response must be two texts, each one answer")
    if (
        not isinstance(sort, list)
        or len(sort) != 2
        or not all(type(one) in (int, float) and math.isfinite(one) for one in sort)
    ):
        raise UserError(f"{where}: sort must be two numbers, the higher of which marks the chosen response")
    if sort[0] == sort[1]:
        raise UserError(f"{where}: sort is {sort}, so neither response is preferred")
    system = None
    if is_system(fields):
        fields.drop("tgt[0]", answers[:1] and answers[0])
        system, questions, answers = questions[0], questions[1:], answers[1:]
    turns = [{"role": "user", "content": questions[0]}] if questions else []
    for answer, question in zip(answers, questions[1:], strict=True):
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
    chosen, rejected = both if sort[0] > sort[1] else reversed(both)
    return with_system(system, turns, where), *(
        {"role": "assistant", "content": answer} for answer in (chosen, rejected)
    )
