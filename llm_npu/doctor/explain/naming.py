"""Finds the failures in a log, and orders them.

Six-digit codes are recognized only after "error code is", "failed:", "result =" and similar text. Codes of E
and five characters, for example EI0006, are recognized anywhere.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from typing import BinaryIO

from .catalogue import HCCL_RESULTS, MODULES, ROLES, Failure, bounded, catalogue
from .reading import pieces

_NUMBER = re.compile(
    r"(?:error(?: ?code| no)?|err_?code|err_?no|failure|failed|retcode|ret|result|status|returned|return"
    r"|code)\W{0,4}(?:is)?\W{0,4}([1-5]\d{5})(?!\w|\.\d)",
    re.IGNORECASE,
)
_CODE = re.compile(r"(?<![A-Za-z0-9_])E[A-Z0-9]\d{4}(?![A-Za-z0-9_])")
_HCCL = re.compile(bounded(r"(?:HCCL function error:.*error code is |hcclRet -> )(\d{1,2})\b"))
_DIGITS = re.compile(r"(?<!\d)[1-5]\d{5}(?!\d)")
_RAW = re.compile(rb"E[A-Z0-9]\d{4}")
_RANGES = ("100", "107", "145", "148", "161", "200", "207", "245", "300", "361", "500", "507", "545", "561")
_REASON = re.compile(bounded(r"(?:rt\w+|execution) (?:execution |execute )?failed, reason=\[?([^\[\]\n]+)"))
ALL_CODES = "runtime/conf/error_manager/error_code.json below CANN's folder"
_STEMS = tuple(b"code Code CODE errno rror ERR ret Ret RET result status failed failure".split())
_SHORT = 240  # displayed characters of a line
_NOTES = 4


@dataclass(frozen=True)
class Named:
    """A failure found in the log: its first line and text, and ``code`` if a code identified it."""

    failure: Failure
    line: int
    text: str
    code: str = ""


@dataclass
class Explanation:
    """The failures in a log, root cause first, and notes about codes that do not identify a failure."""

    named: list[Named] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def explain(log: BinaryIO) -> Explanation:
    """The failures in ``log``."""
    known = catalogue()
    stems = {*_STEMS, *(text.has.encode() for failure in known.failures for text in failure.texts)}
    first: dict[str, Named] = {}
    notes: dict[str, int] = {}
    for number, line in pieces(
        log, lambda block: any(stem in block for stem in stems) or bool(_RAW.search(block))
    ):
        codes = _codes(line)
        for failure, code in _in(line, codes):
            if failure.name not in first:
                first[failure.name] = Named(failure, number, _shortened(line), code)
        for note in _notes(line, codes):
            if len(notes) < _NOTES:
                notes.setdefault(note, number)
    named = sorted(first.values(), key=lambda item: (ROLES.index(item.failure.role), item.line))
    return Explanation(named, [f"line {number}: {note}" for note, number in notes.items()])


def explain_text(log: str) -> Explanation:
    """`explain` for a string."""
    return explain(io.BytesIO(log.encode(errors="replace")))


def _in(line: str, codes: list[str]):
    """(failure, its code or "") for each failure in the line."""
    known = catalogue()
    for text, failure in known.texts:
        if text.has in line and text.fits(line):
            yield failure, ""
            break
    for code in codes:
        if code in known.by_code:
            yield known.by_code[code], code


def _codes(line: str) -> list[str]:
    return _CODE.findall(line) + (_NUMBER.findall(line) if _DIGITS.search(line) else [])


def _notes(line: str, codes: list[str]):
    """Sentences about codes that do not identify a failure."""
    known = catalogue().by_code
    for code in codes:
        if code in known:
            continue
        if code.isdigit():
            if code[:3] in _RANGES:
                yield f"{code} is a code of CANN that the doctor does not recognize"
        elif code[1] in MODULES and code[2] == "9":
            yield f"{code} is an internal error of CANN, from {MODULES[code[1]]}; see the lines after it"
        elif code[1] in MODULES:
            yield f"{code} is from {MODULES[code[1]]} of CANN and is not recognized; see {ALL_CODES}"
    for reason in _REASON.findall(line) if "reason=" in line else ():
        yield f"CANN's reason: {reason.strip()}"
    for number in _HCCL.findall(line) if "HCCL" in line or "hcclRet" in line else ():
        if number in HCCL_RESULTS:
            yield f"HCCL's result {number}: {HCCL_RESULTS[number]}"


def _shortened(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= _SHORT else line[: _SHORT - 4] + " ..."
