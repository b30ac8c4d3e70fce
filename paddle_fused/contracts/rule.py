"""``ContractRule``, its error, and CANN's error numbers and levels."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

# CANN's error numbers (aclnn return codes) and their names.
PARAM_NULLPTR = 161001
PARAM_INVALID = 161002
RUNTIME = 361001
INNER = 561000
INNER_TILING = 561002
ERRORS = {
    PARAM_NULLPTR: "ACLNN_ERR_PARAM_NULLPTR",
    PARAM_INVALID: "ACLNN_ERR_PARAM_INVALID",
    RUNTIME: "ACLNN_ERR_RUNTIME_ERROR",
    INNER: "ACLNN_ERR_INNER",
    INNER_TILING: "ACLNN_ERR_INNER_TILING_ERROR",
}

DEFAULT_CANN = "8.0.RC2"  # the level that the virtual NPU emulates by default


@dataclass(frozen=True)
class ContractRule:
    """A rule on the arguments of ``operators``.

    Attributes:
        error: CANN's error number, or None if the call is refused before it reaches CANN.
        accepts: completes "accepted: ...".
        advice: a full sentence.
        source: the public document or file that states the rule.
    """

    key: str
    operators: tuple[str, ...]
    error: int | None
    accepts: str
    advice: str
    source: str

    def sentence(self, operator: str, received: str, note: str = "") -> str:
        """The message of ``operator`` when ``came`` breaks this rule. ``note`` follows the advice."""
        assert operator in self.operators, f"{self.key} is no rule of {operator}: {self.operators}"
        text = f"{operator}: {received}; accepted: {self.accepts}. {self.advice}{note and f' {note}'}"
        return text if self.error is None else f"{text} (CANN error {self.error}, {ERRORS[self.error]})"


class ContractError(ValueError):
    """A call that violates ``rule``. ``error``: CANN's error number, if it has one.

    Both are None in the copy that Paddle creates from the message while it captures a program.
    """

    rule: ContractRule | None = None
    error: int | None = None

    @classmethod
    def of(cls, rule: ContractRule, operator: str, received: str, note: str = "") -> ContractError:
        raised = cls(rule.sentence(operator, received, note))
        raised.rule, raised.error = rule, rule.error
        return raised


@dataclass(frozen=True)
class LaterLimit:
    """A limit that a later CANN raised: ``value``, or ``later`` from version ``since`` (such as 8.3) on."""

    value: int
    since: str
    later: int

    def at(self, level: str) -> int:
        return self.later if _major_minor(level) >= _major_minor(self.since) else self.value

    def __str__(self) -> str:
        return f"{self.value} ({self.later} from CANN {self.since} on)"


def cann_level() -> str:
    """The CANN version whose limits apply: VIRTUAL_NPU_CANN, such as 8.0.RC2."""
    return os.environ.get("VIRTUAL_NPU_CANN") or DEFAULT_CANN


def _major_minor(level: str) -> tuple[int, int]:
    major, minor = re.match(r"(\d+)\.(\d+)", level).groups()
    return int(major), int(minor)


def listed(names) -> str:
    """The names as text: a, b or c."""
    *others, last = map(str, names)
    return f"{', '.join(others)} or {last}" if others else last
