"""Preference pairs in .jsonl files: a prompt, a chosen and a rejected answer.

    {"prompt": "...", "chosen": "...", "rejected": "..."}
    {"messages": [{"role": "user", "content": "..."}], "chosen": "...", "rejected": "..."}       OpenAI
    {"chosen": [{"role": "user", ...}, {"role": "assistant", ...}], "rejected": [...]}           TRL
    {"conversations": [{"from": "human", ...}], "chosen": {"from": "gpt", ...}, "rejected": ...} ShareGPT
    {"instruction": "...", "input": "...", "chosen": "...", "rejected": "..."}                   Alpaca
    {"messages": [..., {"role": "assistant", ...}], "rejected_response": "..."}                  ms-swift
    {"query": "...", "response": "...", "rejected_response": "..."}                              ms-swift
    {"src": ["..."], "tgt": [], "response": ["...", "..."], "sort": [1, 0]}                      erniekit

A prompt is text, or messages that end with a user message. An answer is text, a message, or a list with one
message. If ``chosen`` and ``rejected`` are whole conversations, all messages but the last are equal and form
the prompt. PaddleFormers' names ``chosen_response`` and ``rejected_response`` are also accepted. Of two
``response`` texts, the one with the higher ``sort`` is chosen. ``system`` and ``tools`` are as in
``conversations``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from llm_npu.core.errors import UserError

from .conversations import is_system, layout, openai, query, question_of, sharegpt
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
    """A preference pair.

    Attributes:
        prompt: Messages; the last is from a user or a tool.
        chosen, rejected: Messages of the assistant.
        where: File and line.
        unread: Keys of the record that are not used.
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
        """Yield all pairs. Raises UserError, with file and line, for any other line."""
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
        raise UserError(f"{where}: an answer has weight 0; remove the weight, or the line")
    check(prompt, where)
    if not prompt or prompt[-1]["role"] not in ("user", "tool"):
        last = f"the {prompt[-1]['role']} message" if prompt else "nothing"
        raise UserError(f"{where}: the prompt ends with {last}; it must end with a user message")
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        check([answer], f"{where}: {name}")
        if not (answer["content"] or "").strip() and "tool_calls" not in answer:
            raise UserError(f"{where}: the {name} answer is empty")
    if chosen == rejected:
        raise UserError(f"{where}: the chosen and the rejected answer are equal, so neither is preferred")
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
    """The conversation that ends with the chosen answer, as in ms-swift's files, or None."""
    names = [name for name in ANSWERED if name in fields]
    messages = ANSWERED[layout(fields, ANSWERED)](fields) if names else []
    return messages if messages and messages[-1]["role"] == "assistant" else None


def _answer(fields: Fields, *names: str) -> object:
    present = [name for name in names if fields.get(name) is not None]
    if not present:
        raise UserError(
            f"{fields.where} has {fields}, but no {names[0]} answer; a preference pair needs chosen and "
            "rejected (or erniekit's response and sort)"
        )
    if len(present) > 1:
        raise UserError(f"{fields.where} has {' and '.join(present)}; keep one of them")
    return fields.get(present[0])


def _is_whole(answer: object) -> bool:
    """Whether ``answer`` is a whole conversation."""
    first = answer[0] if isinstance(answer, list) and answer else None
    return isinstance(first, dict) and first.get("role") in ("system", "user")


def _whole(chosen: list, rejected: object, fields: Fields) -> tuple[list[Message], Message, Message]:
    conversations = [
        listed(messages, "role", "content", OPENAI_ROLES, f"{fields.where}: {name}")
        for name, messages in (("chosen", chosen), ("rejected", rejected))
    ]
    if not conversations[1] or conversations[0][:-1] != conversations[1][:-1]:
        raise UserError(
            f"{fields.where}: chosen and rejected are conversations that differ before their last messages; "
            "they must have the same prompt"
        )
    prompt, answers = conversations[0][:-1], [messages[-1] for messages in conversations]
    for name, answer in zip(("chosen", "rejected"), answers, strict=True):
        if answer["role"] != "assistant":
            raise UserError(f"{fields.where}: {name} ends with a {answer['role']} message, not an answer")
    texts = {message["content"] for message in prompt if isinstance(message["content"], str)}
    if fields.get("prompt") not in (None, *texts):  # TRL's data sets repeat the question here
        raise UserError(
            f"{fields.where}: the conversations chosen and rejected do not contain prompt; remove prompt"
        )
    return prompt, *answers


def _prompt(fields: Fields) -> list[Message]:
    if all(fields.get(name) in (None, "") for name in PROMPTS):
        raise UserError(
            f"{fields.where} has no prompt; accepted: prompt, messages, conversations or instruction, or "
            "whole conversations as chosen and rejected"
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
    "instruction": lambda fields: question_of(fields, "instruction", "input"),
    "query": lambda fields: question_of(fields, "query"),
}


def _message(answer: object, where: str) -> Message:
    """Parse an answer: text, an assistant message, or a list with one such message."""
    value = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    if isinstance(value, str):
        return {"role": "assistant", "content": value}
    if isinstance(value, dict):
        keys = ("from", "value", SHAREGPT_ROLES) if "from" in value else ("role", "content", OPENAI_ROLES)
        (message,) = listed([value], *keys, where)
        if message["role"] == "assistant":
            return message
    raise UserError(
        f"{where} must be text, an assistant message, or a list with one such message, but is {answer!r:.40}"
    )


def _erniekit(fields: Fields) -> tuple[list[Message], Message, Message]:
    where = fields.where
    questions, answers, responses, sort = (fields.get(name) for name in ("src", "tgt", "response", "sort"))
    questions, answers = (
        [texts] if isinstance(texts, str) else texts for texts in (questions, answers or [])
    )
    if not isinstance(questions, list) or not isinstance(answers, list) or len(questions) != len(answers) + 1:
        raise UserError(f"{where}: src must have one text more than tgt: the last question has two responses")
    responses = responses if isinstance(responses, list) else []
    responses = [item[0] if isinstance(item, list) and len(item) == 1 else item for item in responses]
    if len(responses) != 2 or not all(isinstance(response, str) for response in responses):
        raise UserError(f"{where}: response must be a list of two texts")
    if (
        not isinstance(sort, list)
        or len(sort) != 2
        or not all(type(rank) in (int, float) and math.isfinite(rank) for rank in sort)
    ):
        raise UserError(f"{where}: sort must be two numbers; the higher one marks the chosen response")
    if sort[0] == sort[1]:
        raise UserError(f"{where}: sort is {sort}, so neither response is preferred")
    system = None
    if is_system(fields):
        fields.drop("tgt[0]", answers[:1] and answers[0])
        system, questions, answers = questions[0], questions[1:], answers[1:]
    turns = [{"role": "user", "content": questions[0]}] if questions else []
    for answer, question in zip(answers, questions[1:], strict=True):
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
    chosen, rejected = responses if sort[0] > sort[1] else reversed(responses)
    return with_system(system, turns, where), *(
        {"role": "assistant", "content": answer} for answer in (chosen, rejected)
    )
