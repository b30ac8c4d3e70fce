"""A YAML or JSON file of arguments, before the flags or named by ``--config``."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence

import yaml

from llm_npu.core import paths
from llm_npu.core.errors import UserError
from llm_npu.core.untrusted import plain_json

SUFFIXES = (".yaml", ".yml", ".json")
LARGEST = 1 << 20  # bytes
DEEPEST = 16
OPENING = (
    yaml.BlockSequenceStartToken,
    yaml.BlockMappingStartToken,
    yaml.FlowSequenceStartToken,
    yaml.FlowMappingStartToken,
)
CLOSING = (yaml.BlockEndToken, yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)


def split_file(argv: Sequence[str]) -> tuple[dict[str, object], list[str]]:
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


def read_file(name: str) -> dict[str, object]:
    """The arguments in a file; ``null`` means the default. UserError as in split_file."""
    path = paths.given(name)
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"{name!r} is neither a flag (--name value) nor a file of arguments ({', '.join(SUFFIXES)})"
        )
    try:
        text = plain_json.text_of(path, LARGEST)
    except OSError as error:
        raise UserError(f"the file of arguments {name} cannot be read: {error}") from error
    try:
        if path.suffix == ".json":
            content = plain_json.loads(text, pairs=lambda pairs: _unique(pairs, name))
        else:
            content = _yaml(text, name)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise UserError(
            f"{name} is not valid {path.suffix[1:].upper()}: {' '.join(str(error).split())}"
        ) from error
    if content is None:  # an empty YAML file
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{name} must map argument names to values, not be a {type(content).__name__}")
    for key, value in content.items():
        if not isinstance(key, str):
            raise UserError(f"{name}: {key!r} is no argument's name")
        if isinstance(value, dict):
            raise UserError(
                f"{name}: {key} holds a mapping; arguments belong at the top level, without groups"
            )
        if not _is_plain(value, depth=2):  # skip_data_intervals is a list of pairs
            raise UserError(f"{name}: {key} must be a plain value, or a list of them")
    return {key: value for key, value in content.items() if value is not None}


def as_flags(arguments: dict[str, object]) -> list[str]:
    """The arguments of a file as command-line flags."""
    flags: list[str] = []
    for name, value in arguments.items():
        if not isinstance(value, list):
            flags.append(f"--{name}={value}")
        elif any(isinstance(item, list) for item in value):  # skip_data_intervals: a flag given several times
            flags += [part for item in value for part in as_flags({name: item})]
        elif value:
            flags += [f"--{name}", *map(str, value)]
    return flags


def _unique(pairs: list[tuple[str, object]], name: str) -> dict[str, object]:
    found = {}
    for key, value in pairs:
        if key in found:
            raise UserError(f"{name} gives {key} twice")
        found[key] = value
    return found


def _yaml(text: str, name: str) -> object:
    """As ``yaml.safe_load``; refuses aliases, deep nesting and a key given twice at the top level."""
    depth = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.AliasToken):
            raise UserError(f"{name} has an alias (*{token.value}); write the value out")
        depth += isinstance(token, OPENING) - isinstance(token, CLOSING)
        if depth > DEEPEST:
            raise yaml.YAMLError("it is nested too deeply")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)  # the nodes show both keys
        if isinstance(root, yaml.MappingNode):
            _unique([(str(key.value), None) for key, _ in root.value], name)
        return yaml.safe_load(text)
    except (TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        raise yaml.YAMLError(f"a value does not have its tag's type: {error}") from None


def _is_plain(value: object, depth: int) -> bool:
    if isinstance(value, list):
        return depth > 0 and all(_is_plain(each, depth - 1) for each in value)
    return isinstance(value, (str, int, float, datetime.date)) or value is None
