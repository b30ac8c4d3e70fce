"""The result of a check, and the output of all findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from paddle_fused import strict_json

LEVELS = ("error", "warning", "ok")


@dataclass(frozen=True)
class Finding:
    """The result of ``check`` on one subject: ``what`` was found and, unless it is ok, the ``cure``.

    ``error``: the requested training cannot work. ``warning``: it works, but slower, or not as the
    environment suggests.
    """

    check: str
    level: Literal["ok", "warning", "error"]
    what: str
    cure: str = ""

    def __post_init__(self):
        assert self.level in LEVELS and bool(self.cure) == (self.level != "ok"), self


def ok(check: str, what: str) -> Finding:
    return Finding(check, "ok", what)


def warning(check: str, what: str, cure: str) -> Finding:
    return Finding(check, "warning", what, cure)


def error(check: str, what: str, cure: str) -> Finding:
    return Finding(check, "error", what, cure)


def exit_code(findings: Sequence[Finding]) -> int:
    """1 if there is an error, else 0."""
    return int(any(finding.level == "error" for finding in findings))


def text(findings: Sequence[Finding]) -> str:
    """One line per finding, the cure below it, and a line of counts."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:8} {finding.check:12} {finding.what}")
        if finding.cure:
            lines.append(f"{'':8} {'cure':>12} {finding.cure}")
    counts = Counter(finding.level for finding in findings)
    lines += ["", ", ".join(f"{counts[level]} {level}" for level in LEVELS)]
    return "\n".join(lines) + "\n"


def as_json(findings: Sequence[Finding]) -> str:
    """{"exit_code": 0 or 1, "findings": [{"check", "level", "what", "cure"}, ...]}"""
    content = {"exit_code": exit_code(findings), "findings": [asdict(finding) for finding in findings]}
    return strict_json.dumps(content, indent=2) + "\n"
