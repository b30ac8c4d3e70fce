"""Messages of a conversation, as passed to a chat template: {"role", "content"} and other keys.

Other keys, such as ``reasoning_content`` or ``name``, are passed to the template. The arguments of
``tool_calls`` are objects, as templates expect; in a file they may be JSON text (OpenAI's format).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json
from paddle_fused import strict_json

from .records import Fields, holds, refuse_media

Message = dict[str, object]

CALL = "call"  # role of assistant messages whose text is a tool call in JSON
OPENAI_ROLES = {role: role for role in ("system", "user", "assistant", "tool")}
OPENAI_ROLES |= {"tool_call": CALL, "tool_response": "tool"}  # ms-swift's
SHAREGPT_ROLES = {"system": "system", "human": "user", "gpt": "assistant"}
SHAREGPT_ROLES |= {"function_call": CALL, "observation": "tool"}
WEIGHTS = ("weight", "loss", "train")  # names in OpenAI's, ms-swift's and axolotl's format


def listed(objects: object, role: str, content: str, roles: Mapping[str, str], where: str) -> list[Message]:
    """The messages in a list of objects with the keys ``role``, one of ``roles``, and ``content``."""
    if not isinstance(objects, list) or not all(isinstance(item, dict) for item in objects):
        raise UserError(f"{where} must be a list of objects with {role} and {content}")
    return [_message(item, role, content, roles, where) for item in objects]


def _message(item: dict, role: str, content: str, roles: Mapping[str, str], where: str) -> Message:
    name = item.get(role)
    if not isinstance(name, str) or name not in roles:
        raise UserError(f"{where}: {role} is {name!r:.40}; accepted: {', '.join(roles)}")
    refuse_media(item, where)
    more = {key: value for key, value in item.items() if key not in (role, content) and holds(value)}
    more |= {key: item[key] for key in WEIGHTS if item.get(key) is not None}
    text = item.get(content)
    if roles[name] == CALL:
        more["tool_calls"], text = _call_in(text, f"{where}: {role} {name}"), None
    elif "tool_calls" in more:
        more["tool_calls"] = _calls(more["tool_calls"], f"{where}: tool_calls")
    ambiguous = {"role", "content"} & more.keys()  # ShareGPT and OpenAI keys in one message
    if ambiguous:
        raise UserError(f"{where}: a message has both {role} and {sorted(ambiguous)[0]}; keep one layout")
    return {"role": "assistant" if roles[name] == CALL else roles[name], "content": text, **more}


def paired(turns, weights: Sequence[object] | None = None) -> list[Message]:
    """The messages of [question, answer] pairs, and the answers' ``weights``."""
    messages = []
    for number, (question, answer) in enumerate(turns):
        weight = {} if weights is None else {"weight": weights[number]}
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer, **weight})
    return messages


def with_system(system: object, messages: list[Message], where: str) -> list[Message]:
    """Prepend the message ``system`` unless ``messages`` begin with the same system message."""
    if not holds(system):
        return messages
    if messages and messages[0]["role"] == "system":
        if messages[0]["content"] != system:
            raise UserError(f"{where} has system and a different system message; keep one of them")
        return messages
    return [{"role": "system", "content": system}, *messages]


def weighed(messages: list[Message], where: str) -> tuple[list[Message], frozenset[int], list[str]]:
    """(messages without `WEIGHTS`, indices of answers with weight 0, weights without effect)."""
    unweighted, context, without_effect = [], set(), []
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
                without_effect.append(f"{name} of a {message['role']} message")
        unweighted.append({name: value for name, value in message.items() if name not in WEIGHTS})
    return unweighted, frozenset(context), without_effect


def check(messages: list[Message], where: str) -> None:
    """Raise UserError for a message that is not text, or a system message that is not the first."""
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        calls = role == "assistant" and "tool_calls" in message
        if not isinstance(content, str) and not (calls and content is None):
            raise UserError(f"{where}: the {role} message {number + 1} must be text, not {content!r:.40}")
        if not is_unicode(message):
            raise UserError(f"{where}: message {number + 1} is not valid Unicode")
        if role == "system" and number:
            raise UserError(f"{where}: the system message must be the first, not number {number + 1}")


def tools_of(fields: Fields) -> list[dict] | None:
    """The record's tools, or None: a list of objects, or its JSON text (LLaMA-Factory's)."""
    tools = fields.get("tools")
    if isinstance(tools, str) and tools:
        tools = _json(tools, f"{fields.where}: tools")
    if not holds(tools):
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UserError(f"{fields.where}: tools must be a list of objects, or its JSON text")
    if not is_unicode(tools):
        raise UserError(f"{fields.where}: tools is not valid Unicode")
    return tools


def with_text_arguments(messages: Sequence[Message]) -> list[Message]:
    """Convert the arguments of ``tool_calls`` to JSON text, which some templates expect."""
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
        return True  # the template rejects it
    return True


def _calls(calls: object, where: str) -> list[dict]:
    if isinstance(calls, str):
        calls = _json(calls, where)
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise UserError(f"{where} must be a list of objects with function, or with name and arguments")
    for call in calls:
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UserError(f"{where}: a call has no name; accepted: function with name and arguments")
    return [_map_arguments(call, lambda arguments: _as_object(arguments, where)) for call in calls]


def _call_in(text: object, where: str) -> list[dict]:
    """Parse the calls in a message's text: an object with name and arguments, or a list of these."""
    value = _json(text, where) if isinstance(text, str) else text
    calls = value if isinstance(value, list) else [value]
    if not calls or not all(isinstance(call, dict) and "name" in call for call in calls):
        raise UserError(f"{where} must be a call in JSON, with name and arguments, but is {text!r:.40}")
    return _calls([{"type": "function", "function": call} for call in calls], where)


def _map_arguments(call: dict, change) -> dict:
    if isinstance(call.get("function"), dict):
        return {**call, "function": _map_arguments(call["function"], change)}
    return {**call, "arguments": change(call["arguments"])} if "arguments" in call else call


def _as_object(arguments: object, where: str) -> object:
    if not isinstance(arguments, str):
        return arguments
    value = _json(arguments, f"{where}: arguments") if arguments.strip() else {}
    if not isinstance(value, dict):
        raise UserError(f"{where}: arguments must be an object, or its JSON text, but are {arguments!r:.40}")
    return value


def _as_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else strict_json.dumps(arguments, ensure_ascii=False)


def _json(text: str, where: str):
    try:
        return plain_json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not valid JSON: {error.msg}") from None
