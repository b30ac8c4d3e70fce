"""``ContractRule`` and its error, CANN's error numbers, and differences between CANN releases."""

from __future__ import annotations

from dataclasses import dataclass

from paddle_fused import cann_releases

# CANN's error numbers (aclnn return codes) and their names.
PARAM_NULLPTR = 161001
PARAM_INVALID = 161002
RUNTIME = 361001
INNER = 561000
INNER_TILING = 561002
INNER_NULLPTR = 561103
ERRORS = {
    PARAM_NULLPTR: "ACLNN_ERR_PARAM_NULLPTR",
    PARAM_INVALID: "ACLNN_ERR_PARAM_INVALID",
    RUNTIME: "ACLNN_ERR_RUNTIME_ERROR",
    INNER: "ACLNN_ERR_INNER",
    INNER_TILING: "ACLNN_ERR_INNER_TILING_ERROR",
    INNER_NULLPTR: "ACLNN_ERR_INNER_NULLPTR",
}

# Sources of differences between CANN releases: branches and tags of the operators, and release notes.
OPS_TRANSFORMER = "https://github.com/mirror-cann/ops-transformer"
OPS_NN = "https://github.com/hicann/ops-nn"
_NOTES = "https://www.hiascend.com/document/detail/zh/canncommercial/{}/releasenote/releasenote_{}.html"
NOTES_82, NOTES_83, NOTES_85 = (
    _NOTES.format(*page) for page in (("82RC1", "0006"), ("83RC1", "0006"), ("850", "0018"))
)


@dataclass(frozen=True)
class ByRelease:
    """A limit or an error number that differs between CANN releases.

    Attributes:
        value: the value before the release ``since``.
        later: the value from that release on.
        source: the URL of the document that states the difference.
        card: the value of VIRTUAL_NPU_CARD with the difference; "" for every card.
    """

    value: int
    since: str
    later: int
    source: str
    card: str = ""

    def at(self, release: str, card: str = "") -> int:
        applies = not self.card or self.card == card
        is_later = cann_releases.index_of(release) >= cann_releases.index_of(self.since)
        return self.later if applies and is_later else self.value

    def __str__(self) -> str:
        card = f" on the {self.card}" if self.card else ""
        return f"{self.value} ({self.later} since CANN {self.since}{card})"


@dataclass(frozen=True)
class Change:
    """A difference between CANN releases that is neither a limit nor an error number of a rule.

    Attributes:
        subject: the function, and the argument or the card if only these are affected.
        before: the state before the release ``since``, in one or two words.
        later: the state from that release on.
        source: the URL of the document that states the difference.
    """

    subject: str
    before: str
    since: str
    later: str
    source: str

    def at(self, release: str) -> str:
        is_later = cann_releases.index_of(release) >= cann_releases.index_of(self.since)
        return self.later if is_later else self.before


@dataclass(frozen=True)
class ContractRule:
    """A rule on the arguments of ``operators``.

    Attributes:
        error_number: CANN's error number, or None if the call never reaches CANN.
        accepts: the text after "accepted: ".
        advice: a full sentence.
        source: the public document or file that states the rule.
    """

    key: str
    operators: tuple[str, ...]
    error_number: int | ByRelease | None
    accepts: str
    advice: str
    source: str

    @property
    def error(self) -> int | None:
        """CANN's error number in the release in effect."""
        number = self.error_number
        return number.at(cann_releases.in_effect()) if isinstance(number, ByRelease) else number

    def sentence(self, operator: str, received: str, note: str = "") -> str:
        """The message for a call of ``operator`` that violates the rule. ``note`` follows the advice."""
        assert operator in self.operators, f"{self.key} is not a rule of {operator}: {self.operators}"
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


def listed(names) -> str:
    """The names as text: a, b or c."""
    *others, last = map(str, names)
    return f"{', '.join(others)} or {last}" if others else last
