"""A flag is a dataclass field; ``flag`` stores all its properties in the field's metadata.

    lora_rank: int = flag(8, "Rank of LoRA's A and B.", at_least=1, no_effect=NOT_LORA)

The parser, the file reader, the checks, the notes about flags without effect, and the documentation are
driven by this metadata, so a new flag is defined in one place.
"""

from __future__ import annotations

import dataclasses
import math
import os
import types
import typing
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import dataclass

from llm_npu.core.errors import UserError
from paddle_fused.command_line import FALSE, TRUE, truth

LARGEST = 1 << 63
SHOWN = 60  # characters shown of a rejected value
BOOL_OR_TEXT = bool | str
# A value in a file: a YAML or JSON scalar, None for null, or a list of values.
Value = bool | int | float | str | None | list


@dataclass(frozen=True)
class NoEffect:
    """Why a flag has no effect in runs for which ``when`` is true; by default in all runs.

    ``when`` gets a namespace with the value of every flag, ``explicit`` ({name: value} of the flags set by
    the user) and ``processes`` (the number of processes).
    """

    why: str
    when: Callable[[Namespace], bool] = lambda run: True


@dataclass(frozen=True, kw_only=True)
class Flag:
    """``--name`` and its metadata.

    Attributes:
        kind: bool, int, float, str, ``bool | str`` or a list of them, never Optional.
        choices: Accepted texts, case-insensitive. If ``no`` is a choice, false means ``no``.
        value_if_bare: Value of ``--name`` without an argument. If it is a text, true means the same and
            false the default.
        no_effect: When the flag has no effect.
        aliases: Names of the same flag in other launchers.
        hint: A sentence appended to the error about an invalid choice.
        check_format: Raises UserError for a value with invalid syntax.
        path: Whether the value is a file or folder, where ``~`` is the home folder.
        comma_separated: Whether a file may give a list instead of a comma-separated text.
    """

    name: str
    kind: type
    default: object
    section: str
    help: str = ""
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    below: float | None = None
    value_if_bare: object = None
    no_effect: tuple[NoEffect, ...] = ()
    aliases: tuple[str, ...] = ()
    hint: Callable[[object], str] = lambda value: ""
    check_format: Callable[[typing.Any], object] | None = None
    path: bool = False
    comma_separated: bool = False

    @property
    def has_negation(self) -> bool:
        """Whether ``--no_NAME`` exists: for switches that can be on by default."""
        return self.kind is bool and self.default in (True, None)

    @property
    def item(self) -> tuple[type, int]:
        """(type of a single value, depth of list nesting)."""
        kind, depth = self.kind, 0
        while typing.get_origin(kind) is list:
            [kind], depth = typing.get_args(kind), depth + 1
        return kind, depth

    def parse(self, value: bool | int | float | str) -> object:
        """Parse a single value of the field, from a command line's text or a file's scalar.

        A value of the field's type is returned unchanged. Raises ArgumentTypeError, as argparse expects.
        """
        kind, _ = self.item
        if isinstance(value, str) or type(value) is not kind:
            value = self._parsed(kind, written(value))
        if kind is int and not -LARGEST <= value < LARGEST:
            raise ArgumentTypeError(f"{_shown(written(value))} has more than 64 bits")
        return value

    def _parsed(self, kind: type, text: str) -> object:
        if kind is bool or (kind == BOOL_OR_TEXT and text.lower() in (*TRUE, *FALSE)):
            return truth(text)
        if kind in (int, float):
            return _number(kind, text)
        if "no" in self.choices and text.lower() in FALSE:
            return "no"
        if isinstance(self.value_if_bare, str) and text.lower() in (*TRUE, *FALSE):
            return self.value_if_bare if truth(text) else self.default
        spellings = {choice.lower(): choice for choice in self.choices}
        return spellings.get(text.lower(), _text(text))

    def from_file(self, value: Value) -> object:
        """Convert a value of an argument file to the field's type. Raises UserError if this is impossible."""
        _, depth = self.item
        if isinstance(value, list) and not depth:
            if not self.comma_separated:
                raise UserError(
                    f"{self.name} takes one value, but the argument file gives the list {_shown(value)}"
                )
            value = ",".join(map(written, value))
        try:
            return self._nested(value, depth)
        except ArgumentTypeError as error:
            raise UserError(f"--{self.name}: {error}") from None

    def _nested(self, value: Value, depth: int) -> object:
        if depth == 0:
            if isinstance(value, list):
                raise ArgumentTypeError(f"{_shown(value)} is a list, but must be a single value")
            return self.parse(value)
        items = value if isinstance(value, list) else [value]
        if depth == 2 and not any(isinstance(item, list) for item in items):  # one pair
            items = [items] if items else []
        return [self._nested(item, depth - 1) for item in items]

    @property
    def limits(self) -> str:
        """The accepted values in words; empty if the type is the only limit."""
        if self.choices:
            return any_of(self.choices)
        if self.at_least is None:
            return ""
        if self.below is None:
            return f"{self.at_least} or more"
        return f"at least {self.at_least} and below {self.below}"

    def check(self, value: object) -> None:
        """Raise UserError for a value outside the flag's limits. The default is always accepted."""
        if value == self.default:
            return
        if self.choices and value not in self.choices:
            hint = self.hint(value)
            raise UserError(f"--{self.name} is {value!r}, but must be {self.limits}{hint and '.'}{hint}")
        if self.at_least is not None and not (
            self.at_least <= value < (math.inf if self.below is None else self.below)
        ):
            raise UserError(f"--{self.name} is {value}, but must be {self.limits}")
        if self.check_format is not None and value is not None:
            self.check_format(value)

    def without_effect(self, run: Namespace) -> str | None:
        """Why the flag has no effect in ``run`` (see ``NoEffect``); None if it has one."""
        return next((rule.why for rule in self.no_effect if rule.when(run)), None)

    def is_off(self, value: object) -> bool:
        """Whether ``value`` leaves the feature off, as a degree of 1 does."""
        return (
            value in (None, "", [])
            or value is False
            or (self.name.endswith("_degree") and value in (-1, 0, 1))
        )


def written(value: bool | int | float | str | None) -> str:
    """Format a value as users write it, such as ``true``."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _number(kind: type, text: str) -> int | float:
    try:
        # Python's notation has no leading zeros: YAML would read 010 as 8, and the command line as 10.
        return int(text, 0) if kind is int else float(text)
    except ValueError:
        reason = (
            "is not a whole number; write it in digits, without leading zeros"
            if kind is int
            else "is not a number, such as 3, 0.1 or 1e-4"
        )
        raise ArgumentTypeError(f"{_shown(text)} {reason}") from None


def _text(text: str) -> str:
    """Check that a file name can contain the text."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ArgumentTypeError(f"{_shown(text)} has a character that UTF-8 cannot encode") from None
    if "\0" in text:
        raise ArgumentTypeError(f"{_shown(text)} has a NUL character; remove it")
    return text


def _shown(value: str | list) -> str:
    shown = f"[{', '.join(map(_plain, value))}]" if isinstance(value, list) else repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."


def _plain(value: Value) -> str:
    return _shown(value) if isinstance(value, list) else written(value)


def flag(default: object, help: str, **more: typing.Any) -> typing.Any:
    """A dataclass field for a flag; ``more``: attributes of ``Flag``. ``no_effect`` may be one reason."""
    reasons = more.get("no_effect", ())
    metadata = {"help": help, **more, "no_effect": (reasons,) if isinstance(reasons, NoEffect) else reasons}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flags_of(arguments: type, section: str) -> dict[str, Flag]:
    """The flags of a dataclass by name."""
    hints = typing.get_type_hints(arguments)
    return {
        field.name: Flag(
            name=field.name,
            kind=_without_none(hints[field.name]),
            default=field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory(),
            section=section,
            **field.metadata,
        )
        for field in dataclasses.fields(arguments)
        if field.init
    }


def any_of(choices: tuple[str, ...]) -> str:
    """``a, b or c``."""
    return choices[0] if len(choices) == 1 else ", ".join(choices[:-1]) + f" or {choices[-1]}"


def _without_none(kind: type) -> type:
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    return typing.Union[tuple(member for member in typing.get_args(kind) if member is not type(None))]  # noqa: UP007
