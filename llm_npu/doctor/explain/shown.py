"""Formats an explanation: in full, as JSON, and in short after a trainer's own error."""

from __future__ import annotations

import sys
import textwrap
import traceback
from pathlib import Path

from paddle_fused import strict_json

from .naming import Explanation, Named, explain, explain_text

WIDTH = 118
EXPLAINED = 1 << 16  # bytes at the end of a rank's log that may contain the rank's own explanation
UNKNOWN = (
    "this log contains no known failure. Attach to a report: the complete log, the logs of all ranks "
    "(OUTPUT_DIR/log), ~/ascend/log, and the output of `llm-npu doctor --json`."
)
LABELS = {"cause": "cause", "consequence": "follows", "vague": "unclear", "general": "unclear"}
LOOK_ABOVE = "This log does not contain the cause; look in the logs of the other ranks, or further up."


def exit_code(explanation: Explanation) -> int:
    """1 if a failure was found, else 0."""
    return int(bool(explanation.named))


def text(explanation: Explanation) -> str:
    """The first failure in full, the others in two lines each."""
    lines = []
    for position, named in enumerate(explanation.named):
        lines += _head(named)
        if position == 0:
            lines += _fix(named)
        lines.append("")
    if explanation.named and explanation.named[0].failure.role != "cause":
        lines += _field("note", LOOK_ABOVE)
    for note in explanation.notes:
        lines += _field("note", note)
    if not explanation.named:
        lines += _field("unknown", UNKNOWN)
    return "\n".join(lines).rstrip() + "\n"


def brief(explanation: Explanation) -> str:
    """The first failure only, for printing after the error itself; "" if there is none."""
    return (
        "\n".join([*_head(explanation.named[0], False), *_fix(explanation.named[0])])
        if explanation.named
        else ""
    )


def as_json(explanation: Explanation) -> str:
    """{"exit_code": 0 or 1, "failures": [{"name", "role", "line", ...}, ...], "notes": [...]}"""
    failures = [
        {
            "name": named.failure.name,
            "role": named.failure.role,
            "line": named.line,
            "said": named.text,
            "code": named.code,
            "meaning": named.failure.meaning,
            "causes": named.failure.causes,
            "run": [{"command": command, "shows": shows} for command, shows in named.failure.run],
            "sources": named.failure.sources,
        }
        for named in explanation.named
    ]
    return (
        strict_json.dumps(
            {"exit_code": exit_code(explanation), "failures": failures, "notes": explanation.notes}, indent=2
        )
        + "\n"
    )


def of_rank(file: Path, start: int, end: str) -> str:
    """`brief` of a rank's output in ``file`` from ``start`` on, or else of the sentence ``end``.

    Returns "" if neither contains a known failure, or if the rank has already explained it.
    """
    explanation = Explanation()
    if file.exists():
        with file.open("rb") as log:
            log.seek(start)
            explanation = explain(log)
            log.seek(max(start, log.tell() - EXPLAINED))
            if explanation.named and brief(explanation).encode() in log.read():
                return ""
    return brief(explanation if explanation.named else explain_text(end))


def of_error(error: BaseException) -> str:
    """``brief`` of an exception and its causes."""
    return brief(explain_text("".join(traceback.format_exception(error))))


def after_tracebacks() -> None:
    """Install a hook that explains a known exception below its traceback when it terminates this process."""
    show = sys.excepthook

    def hook(kind, error, trace):
        show(kind, error, trace)
        if explained := of_error(error):
            print(explained, file=sys.stderr)

    sys.excepthook = hook


def _head(named: Named, with_line: bool = True) -> list[str]:
    failure = named.failure
    lines = [f"{LABELS[failure.role]:8} {failure.name}"]
    if with_line:
        lines[0] += f", line {named.line}"
        lines += _field("said", named.text)
    meaning = (
        f"{named.code}: {failure.codes[named.code]}. {failure.meaning}" if named.code else failure.meaning
    )
    return lines + _field("meaning", meaning)


def _fix(named: Named) -> list[str]:
    lines = []
    for number, cause in enumerate(named.failure.causes, 1):
        lines += _field("likely" if number == 1 else "", f"{number}. {cause}")
    for number, (command, shows) in enumerate(named.failure.run):
        lines += [f"{'run' if number == 0 else '':8} {command}", *_field("", f"# {shows}")]
    lines += [
        f"{'source' if number == 0 else '':8} {source}" for number, source in enumerate(named.failure.sources)
    ]
    return lines


def _field(label: str, content: str) -> list[str]:
    indent = " " * 9
    wrapped = textwrap.wrap(content, WIDTH, initial_indent=f"{label:8} ", subsequent_indent=indent)
    return wrapped or [label]
