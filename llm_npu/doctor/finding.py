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
    """The result of ``check`` on one subject, with a ``fix`` unless it is ok.

    Levels: ``error`` means that the requested training cannot work. ``warning`` means that it works, but
    slower or not as the environment suggests.
    """

    check: str
    level: Literal["ok", "warning", "error"]
    message: str
    fix: str = ""

    def __post_init__(self):
        assert self.level in LEVELS and bool(self.fix) == (self.level != "ok"), self


def ok(check: str, message: str) -> Finding:
    return Finding(check, "ok", message)


def warning(check: str, message: str, fix: str) -> Finding:
    return Finding(check, "warning", message, fix)


def error(check: str, message: str, fix: str) -> Finding:
    return Finding(check, "error", message, fix)


def exit_code(findings: Sequence[Finding]) -> int:
    """1 if there is an error, else 0."""
    return int(any(finding.level == "error" for finding in findings))


def text(findings: Sequence[Finding]) -> str:
    """A line per finding with the fix below it, and a line of counts."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:8} {finding.check:12} {finding.message}")
        if finding.fix:
            lines.append(f"{'':8} {'fix':>12} {finding.fix}")
    counts = Counter(finding.level for finding in findings)
    lines += ["", ", ".join(f"{counts[level]} {level}" for level in LEVELS)]
    return "\n".join(lines) + "\n"


def as_json(findings: Sequence[Finding]) -> str:
    """{"exit_code": 0 or 1, "findings": [{"check", "level", "message", "fix"}, ...]}"""
    content = {"exit_code": exit_code(findings), "findings": [asdict(finding) for finding in findings]}
    return strict_json.dumps(content, indent=2) + "\n"
