"""The text of a value, on the command line or in a file -> the value of its flag."""

from __future__ import annotations

import os
import typing
from argparse import ArgumentTypeError
from collections.abc import Callable

from llm_npu.config.flag import Flag
from llm_npu.core.errors import UserError
from paddle_fused.command_line import truth

YAML_TRUE, YAML_FALSE = ("true", "yes", "on"), ("false", "no", "off")
COMMA_SEPARATED = ("split",)  # one string on the command line; a list of its parts, too, in a file
LARGEST = 1 << 63
SHOWN = 60  # characters of a refused value


def item_type(kind: type) -> tuple[type, int]:
    """(the type of the plain values of a flag of ``kind``, how many lists are around them)."""
    depth = 0
    while typing.get_origin(kind) is list:
        [kind], depth = typing.get_args(kind), depth + 1
    return kind, depth


def reader(kind: type) -> Callable[[str], object]:
    """What reads the text of a plain value of ``kind``; it raises ArgumentTypeError, as argparse expects."""
    return {bool: truth, int: whole_number, float: number, str: text}.get(kind, kind)


def from_file(flag: Flag, value: str | list) -> object:
    """The value of ``flag`` that a file of arguments gives. UserError if it is none."""
    kind, depth = item_type(flag.kind)
    if isinstance(value, list) and not depth:
        if flag.name not in COMMA_SEPARATED:
            raise UserError(
                f"{flag.name} takes one value, but the file of arguments gives the list {_shown(value)}"
            )
        value = ",".join(map(str, value))
    if flag.kind is str and "no" in flag.choices and value.lower() in YAML_FALSE:
        return "no"
    try:
        return _nested(reader(kind), value, depth)
    except ArgumentTypeError as error:
        raise UserError(f"--{flag.name}: {error}") from None


def _nested(read: Callable[[str], object], value: str | list, depth: int) -> object:
    if depth == 0:
        if isinstance(value, list):
            raise ArgumentTypeError(f"{_shown(value)} is a list where one value belongs")
        return read(value)
    items = value if isinstance(value, list) else [value]
    if depth == 2 and not any(isinstance(item, list) for item in items):  # one pair
        items = [items] if items else []
    return [_nested(read, item, depth - 1) for item in items]


def whole_number(value: str) -> int:
    """In Python's notation, which has no leading zeros: YAML would read 010 as 8, the command line as 10."""
    try:
        found = int(value, 0)
    except ValueError:
        raise ArgumentTypeError(
            f"{_shown(value)} is not a whole number; write it in digits, without leading zeros"
        ) from None
    if not -LARGEST <= found < LARGEST:
        raise ArgumentTypeError(f"{_shown(value)} has more than 64 bits")
    return found


def number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ArgumentTypeError(f"{_shown(value)} is not a number, such as 3, 0.1 or 1e-4") from None


def text(value: str) -> str:
    """Any text that a file's name can hold."""
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ArgumentTypeError(f"{_shown(value)} has a character that UTF-8 cannot encode") from None
    if "\0" in value:
        raise ArgumentTypeError(f"{_shown(value)} has a NUL character; leave it out")
    return value


def _shown(value: object) -> str:
    shown = f"[{', '.join(map(str, value))}]" if isinstance(value, list) else repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
