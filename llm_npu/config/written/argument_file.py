"""A YAML or JSON file of arguments, before the flags or named by ``--config``.

A value stays the text that the file has, as on a command line, where YAML would make 20261127 of
``2026_11_27`` and 3.1 of ``3.10``; ``values`` reads it as its flag's type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import yaml

from llm_npu.core import paths
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json

SUFFIXES = (".yaml", ".yml", ".json")
LARGEST = 64 << 10  # bytes, which PyYAML reads within seconds
DEEPEST = 16
NULLS = ("", "~", "null", "Null", "NULL")
# What may be tagged: its text is read as the flag's type anyway.
SCALARS = tuple(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp"))
COLLECTIONS = ("tag:yaml.org,2002:seq", "tag:yaml.org,2002:map")
# A value of a file: text, None for null, or a list of them.
Value = str | None | list


def split_file(argv: Sequence[str]) -> tuple[dict[str, Value], list[str]]:
    """(the arguments in the file that ``argv`` names, the flags); ({}, argv) without a file.

    The file comes before all flags or after ``--config``; flags override it either way. UserError for two
    files, and for one that cannot be read, is not valid YAML or JSON, names an argument twice, or is not a
    mapping of names to plain values and lists of them.
    """
    files, flags = [], list(argv)
    if flags and not flags[0].startswith("-"):
        files.append(flags.pop(0))
    while (position := next((i for i, flag in enumerate(flags) if _names_file(flag)), None)) is not None:
        _, equals, file = flags.pop(position).partition("=")
        if not equals:
            file = flags.pop(position) if position < len(flags) else ""
        if not file:
            raise UserError("--config: expected a file of arguments")
        files.append(file)
    if len(files) > 1:
        raise UserError(f"{' and '.join(files)} are two files of arguments; give one")
    return (read_file(files[0]) if files else {}), flags


def _names_file(flag: str) -> bool:
    return flag.partition("=")[0] == "--config"


def read_file(name: str) -> dict[str, Value]:
    """The arguments in a file; None means the default. UserError as in split_file."""
    path = paths.given(name)
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"{name!r} is neither a flag (--name value) nor a file of arguments ({', '.join(SUFFIXES)})"
        )
    try:
        text = plain_json.text_of(path, LARGEST)
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"the file of arguments {name!r:.200} cannot be read: {error}") from error
    try:
        content = _json(text, name) if path.suffix == ".json" else _yaml(text, name)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise UserError(
            f"{name} is not valid {path.suffix[1:].upper()}: {' '.join(str(error).split()):.400}"
        ) from error
    if content is None:  # an empty YAML file
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{name} must map argument names to values, not be a {type(content).__name__}")
    for key, value in content.items():
        if isinstance(value, dict):
            raise UserError(
                f"{name}: {key} holds a mapping; arguments belong at the top level, without groups"
            )
        if not _is_plain(value, depth=2):  # skip_data_intervals is a list of pairs
            raise UserError(f"{name}: {key} must be a plain value, or a list of them without null")
    return content


def _unique(pairs: list[tuple[object, object]], name: str) -> dict[str, object]:
    found = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise UserError(f"{name}: {key!r:.40} is no argument's name")
        if key in found:
            raise UserError(f"{name} gives {key:.80} twice")
        found[key] = value
    return found


def _json(text: str, name: str) -> object:
    content = plain_json.loads(text, pairs=lambda pairs: _unique(pairs, name), number=str)
    return _json_text(content)


def _json_text(value: object) -> object:
    """``value`` with true and false as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return [_json_text(each) for each in value]
    return {key: _json_text(each) for key, each in value.items()} if isinstance(value, dict) else value


def _yaml(text: str, name: str) -> object:
    """The document in ``text``, its scalars as text. yaml.YAMLError for aliases and deep nesting, too."""
    try:
        events = (event for event in yaml.parse(text, Loader=yaml.SafeLoader))
        found, documents = None, 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise yaml.YAMLError("it has several documents")
                found = _node(next(events), events, name, 0)
        return found
    except UserError:
        raise
    except (ValueError, OverflowError) as error:  # PyYAML does not check the numbers in \U and %YAML
        raise yaml.YAMLError(str(error)) from None


def _node(event: yaml.Event, events: Iterator[yaml.Event], name: str, depth: int) -> object:
    """The node that begins with ``event``; ``events`` are those after it."""
    if isinstance(event, yaml.AliasEvent):
        raise yaml.YAMLError(f"it has an alias (*{event.anchor:.40}); write the value out")
    scalar = isinstance(event, yaml.ScalarEvent)
    if event.tag not in (None, "!", *(SCALARS if scalar else COLLECTIONS)):
        raise yaml.YAMLError(f"the tag {event.tag:.80} has no meaning here")
    if scalar:
        plain = event.implicit[0] or event.tag == "tag:yaml.org,2002:null"
        return None if plain and event.value in NULLS else event.value
    if depth == DEEPEST:
        raise yaml.YAMLError("it is nested too deeply")
    nodes = []
    while not isinstance(event := next(events), yaml.CollectionEndEvent):
        nodes.append(_node(event, events, name, depth + 1))
    if isinstance(event, yaml.SequenceEndEvent):
        return nodes
    return _unique(list(zip(nodes[::2], nodes[1::2], strict=True)), name)


def _is_plain(value: object, depth: int) -> bool:
    if isinstance(value, list):
        return depth > 0 and all(each is not None and _is_plain(each, depth - 1) for each in value)
    return isinstance(value, str) or value is None
