"""A flag is one dataclass field; ``flag`` stores everything about it in the field's metadata.

    lora_rank: int = flag(8, "Rank of LoRA's A and B.", at_least=1, no_effect=NOT_LORA)

The parser, the checks, the notes about flags without effect and the documentation read it there; a new flag
needs no entry anywhere else.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llm_npu.core.errors import UserError


@dataclass(frozen=True)
class NoEffect:
    """Why a flag changes nothing in runs for which ``when`` is true; by default in all runs.

    ``when`` gets a namespace with the value of every flag, ``given`` ({name: value} of the flags that the
    user wrote) and ``processes`` (the number of processes).
    """

    why: str
    when: Callable[[Namespace], bool] = lambda run: True


@dataclass(frozen=True, kw_only=True)
class Flag:
    """``--name`` and its metadata.

    ``kind`` is bool, int, float, str or a list of them, never Optional. ``value_if_bare`` is the value of
    ``--name`` without one. ``aliases`` are other launchers' names for the same flag with the same values.
    ``hint`` gives what the refusal of a value that is no choice also says. ``path``: a file or folder,
    in which ``~`` is the home folder.
    """

    name: str
    kind: type
    default: object
    section: str
    help: str = ""
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    below: float | None = None
    value_if_bare: str | None = None
    no_effect: tuple[NoEffect, ...] = ()
    aliases: tuple[str, ...] = ()
    hint: Callable[[object], str] = lambda value: ""
    path: bool = False

    @property
    def limits(self) -> str:
        """The accepted values, in words; empty where the type says it all."""
        if self.choices:
            return any_of(self.choices)
        if self.at_least is None:
            return ""
        if self.below is None:
            return f"{self.at_least} or more"
        return f"at least {self.at_least} and below {self.below}"

    def check(self, value: object) -> None:
        """UserError for a value outside the flag's limits. The default is always accepted."""
        if value == self.default or not self.limits:
            return
        if self.choices and value not in self.choices:
            hint = self.hint(value)
            raise UserError(f"--{self.name} is {value!r}, but must be {self.limits}{hint and '.'}{hint}")
        if self.at_least is not None and not (
            self.at_least <= value < (math.inf if self.below is None else self.below)
        ):
            raise UserError(f"--{self.name} is {value}, but must be {self.limits}")

    def without_effect(self, run: Namespace) -> str | None:
        """Why the flag changes nothing in ``run`` (see ``NoEffect``); None where it has an effect."""
        return next((rule.why for rule in self.no_effect if rule.when(run)), None)

    def is_off(self, value: object) -> bool:
        """Whether ``value`` leaves the feature off, as without the flag; a degree of 1 does."""
        return (
            value in (None, "", [])
            or value is False
            or (self.name.endswith("_degree") and value in (-1, 0, 1))
        )


def flag(default: object, help: str, **more: typing.Any) -> typing.Any:
    """The field of a flag; ``more`` as for ``flag_metadata``."""
    metadata = {"help": help, **flag_metadata(**more)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def flag_metadata(
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    below: float | None = None,
    value_if_bare: str | None = None,
    no_effect: NoEffect | tuple[NoEffect, ...] = (),
    aliases: tuple[str, ...] = (),
    hint: Callable[[object], str] = lambda value: "",
    path: bool = False,
) -> dict[str, object]:
    """The metadata of a flag's field besides its help: the arguments of ``Flag`` with the same names."""
    reasons = (no_effect,) if isinstance(no_effect, NoEffect) else no_effect
    limits = {"choices": choices, "at_least": at_least, "below": below}
    more = {"value_if_bare": value_if_bare, "no_effect": reasons, "aliases": aliases, "hint": hint}
    return {**limits, **more, "path": path}


def flags_of(
    arguments: type, section: str, more: Mapping[str, Mapping[str, object]] = MappingProxyType({})
) -> dict[str, Flag]:
    """The flags of a dataclass by name. ``more``: {name: ``flag_metadata``}, which overrides the field's."""
    hints = typing.get_type_hints(arguments)
    return {
        field.name: Flag(
            name=field.name,
            kind=_without_none(hints[field.name]),
            default=field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory(),
            section=section,
            **{**field.metadata, **more.get(field.name, {})},
        )
        for field in dataclasses.fields(arguments)
        if field.init
    }


def any_of(choices: tuple[str, ...]) -> str:
    """``a, b or c``."""
    return choices[0] if len(choices) == 1 else ", ".join(choices[:-1]) + f" or {choices[-1]}"


def _without_none(kind: type) -> type:
    kinds = [each for each in typing.get_args(kind) if each is not type(None)]
    return kinds[0] if type(None) in typing.get_args(kind) else kind
