"""Messages of a conversation, as a chat template gets them: {"role", "content"}, and what else they have.

Further keys, such as ``reasoning_content`` or ``name``, are passed to the template. ``tool_calls`` have their
arguments as objects, which templates expect, also where the file has them as JSON text (OpenAI's format).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from paddle_fused import strict_json

from .records import Fields, holds, refuse_media

Message = dict[str, object]

CALL = "call"  # in a layout's roles: an assistant's message whose text is a call in JSON
OPENAI_ROLES = {role: role for role in ("system", "user", "assistant", "tool")}
OPENAI_ROLES |= {"tool_call": CALL, "tool_response": "tool"}  # ms-swift's
SHAREGPT_ROLES = {"system": "system", "human": "user", "gpt": "assistant"}
SHAREGPT_ROLES |= {"function_call": CALL, "observation": "tool"}
WEIGHTS = ("weight", "loss", "train")  # of an answer: OpenAI's, ms-swift's and axolotl's names


def listed(found: object, role: str, content: str, roles: Mapping[str, str], where: str) -> list[Message]:
    """The messages in a list of objects with the keys ``role``, one of ``roles``, and ``content``."""
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{where} must be a list of objects with {role} and {content}")
    return [_message(one, role, content, roles, where) for one in found]


def _message(one: dict, role: str, content: str, roles: Mapping[str, str], where: str) -> Message:
    name = one.get(role)
    if not isinstance(name, str) or name not in roles:
        raise UserError(f"{where}: {role} is {name!r:.40}; accepted: {', '.join(roles)}")
    refuse_media(one, where)
    more = {key: value for key, value in one.items() if key not in (role, content) and holds(value)}
    more |= {key: one[key] for key in WEIGHTS if one.get(key) is not None}
    text = one.get(content)
    if roles[name] == CALL:
        more["tool_calls"], text = _call_in(text, f"{where}: {role} {name}"), None
    elif "tool_calls" in more:
        more["tool_calls"] = _calls(more["tool_calls"], f"{where}: tool_calls")
    taken = {"role", "content"} & more.keys()  # ShareGPT's layout with OpenAI's keys as well
    if taken:
        raise UserError(f"{where}: a message has both {role} and {sorted(taken)[0]}; keep one layout")
    return {"role": "assistant" if roles[name] == CALL else roles[name], "content": text, **more}


def paired(turns, weights: Sequence[object] | None = None) -> list[Message]:
    """The messages of [question, answer] pairs, and the answers' ``weights``."""
    found = []
    for number, (question, answer) in enumerate(turns):
        weight = {} if weights is None else {"weight": weights[number]}
        found += [{"role": "user", "content": question}, {"role": "assistant", "content": answer, **weight}]
    return found


def with_system(system: object, messages: list[Message], where: str) -> list[Message]:
    """``messages`` after the message ``system``, unless they begin with the same one."""
    if not holds(system):
        return messages
    if messages and messages[0]["role"] == "system":
        if messages[0]["content"] != system:
            raise UserError(f"{where} has system and a system's message that differ; keep one of them")
        return messages
    return [{"role": "system", "content": system}, *messages]


def weighed(messages: list[Message], where: str) -> tuple[list[Message], frozenset[int], list[str]]:
    """The messages without `WEIGHTS`, the indices of answers with weight 0, and the names of weights that
    have no effect."""
    found, context, without_effect = [], set(), []
    for number, message in enumerate(messages):
        weights = {name: message[name] for name in WEIGHTS if name in message}
        for name, weight in weights.items():
            if not isinstance(weight, (int, float)) or weight not in (0, 1):
                raise UserError(
                    f"{where}: {name} of message {number + 1} is {weight!r:.40}; accepted: 1 (an answer to "
                    "train on) and 0 (context only)"
                )
            if message["role"] == "assistant" and not weight:
                context.add(number)
            if message["role"] != "assistant" and weight:
                without_effect.append(f"{name} of a {message['role']}'s message")
        found.append({name: value for name, value in message.items() if name not in WEIGHTS})
    return found, frozenset(context), without_effect


def check(messages: list[Message], where: str) -> None:
    """UserError for a message that is no text, and for a system's message that is not the first."""
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        calls = role == "assistant" and "tool_calls" in message
        if not isinstance(content, str) and not (calls and content is None):
            raise UserError(f"{where}: the {role}'s message {number + 1} must be text, not {content!r:.40}")
        if not is_unicode(message):
            raise UserError(f"{where}: message {number + 1} is not valid Unicode")
        if role == "system" and number:
            raise UserError(f"{where}: the system's message must be the first, not number {number + 1}")


def tools_of(fields: Fields) -> list[dict] | None:
    """The record's tools: a list of objects, or its JSON text (LLaMA-Factory's). None without any."""
    found = fields.get("tools")
    if isinstance(found, str) and found:
        found = _json(found, f"{fields.where}: tools")
    if not holds(found):
        return None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{fields.where}: tools must be a list of objects, or its JSON text")
    if not is_unicode(found):
        raise UserError(f"{fields.where}: tools is not valid Unicode")
    return found


def with_text_arguments(messages: Sequence[Message]) -> list[Message]:
    """The messages with the arguments of ``tool_calls`` as JSON text, which some templates expect."""
    return [
        {**message, "tool_calls": [_map_arguments(call, _as_text) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def is_unicode(value: object) -> bool:
    """Whether all text of a JSON value is valid Unicode: JSON can encode an unpaired surrogate."""
    try:
        strict_json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    except RecursionError:
        return True  # the template refuses it
    return True


def _calls(found: object, where: str) -> list[dict]:
    if isinstance(found, str):
        found = _json(found, where)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{where} must be a list of objects with function, or with name and arguments")
    for one in found:
        function = one.get("function", one)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UserError(f"{where}: a call has no name; give function with name and arguments")
    return [_map_arguments(call, lambda arguments: _as_object(arguments, where)) for call in found]


def _call_in(text: object, where: str) -> list[dict]:
    """The calls in the text of a message: an object with name and arguments, or a list of them."""
    found = _json(text, where) if isinstance(text, str) else text
    calls = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(one, dict) and "name" in one for one in calls):
        raise UserError(f"{where} must be a call in JSON, with name and arguments; it is {text!r:.40}")
    return _calls([{"type": "function", "function": one} for one in calls], where)


def _map_arguments(call: dict, change) -> dict:
    if isinstance(call.get("function"), dict):
        return {**call, "function": _map_arguments(call["function"], change)}
    return {**call, "arguments": change(call["arguments"])} if "arguments" in call else call


def _as_object(arguments: object, where: str) -> object:
    if not isinstance(arguments, str):
        return arguments
    found = _json(arguments, f"{where}: arguments") if arguments.strip() else {}
    if not isinstance(found, dict):
        raise UserError(f"{where}: arguments must be an object, or its JSON text; they are {arguments!r:.40}")
    return found


def _as_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else strict_json.dumps(arguments, ensure_ascii=False)


def _json(text: str, where: str):
    try:
        return plain_json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error.msg}") from None
