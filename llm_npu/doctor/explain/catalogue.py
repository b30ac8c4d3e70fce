"""The known failures, read from ``llm_npu/doctor/data``.

Each file is a list of objects with these fields:

``name``     the failure's name in this project
``role``     ``cause``; ``consequence``: occurs because another rank has failed; ``vague``: does not state
             what failed; ``general``: a code that CANN prints for many failures
``meaning``  one or two sentences
``codes``    code -> its meaning; a code of six characters, such as 507015 or EI0006
``texts``    ``has``: a substring of the line; ``match``: an optional additional regular expression
``causes``   likely causes, most likely first
``run``      a ``command``, and what its output ``shows``
``sources``  public pages or sources

If several texts match a line, the first in the order of ``FILES``, and within each file, is used.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
FILES = ("plugin", "loading", "paddle", "memory", "device", "operators", "collectives")
SPAN = 512  # maximum characters between the parts of a text
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|[*+]")  # of a regular expression
ROLES = ("cause", "consequence", "vague", "general")  # in display order

# The module indicated by the second character of a code; E?9000 to E?9999 are internal errors:
# https://www.hiascend.com/document/detail/en/canncommercial/850/maintenref/troubleshooting/troubleshooting_0225.html
MODULES = {
    "1": "its graph engine",
    "2": "its fusion engine",
    "3": "the card's AICPU",
    "4": "its operator compiler",
    "7": "an operator's plugin",
    "8": "an operator",
    "B": "its operator compiler",
    "E": "its runtime",
    "H": "its interface (ACL)",
    "I": "HCCL, its collectives",
    "J": "HCCP, the connections of its collectives",
    "K": "its profiler",
    "L": "the driver",
    "Z": "an operator",
}
# enum HcclResult, <hccl/hccl_types.h>.
HCCL_RESULTS = {
    "1": "invalid parameter",
    "2": "null pointer",
    "3": "out of memory",
    "4": "an internal error",
    "5": "not supported",
    "6": "not found",
    "7": "unavailable",
    "8": "a system call failed",
    "9": "timeout",
    "10": "a file cannot be opened",
    "11": "a TCP connection failed",
    "12": "a RoCE connection failed",
    "13": "sending over TCP failed",
    "14": "sending over RoCE failed",
    "15": "a call of CANN's runtime failed",
    "16": "a call of the driver failed",
    "19": "a call of the network failed",
    "21": "packets were not acknowledged",
    "24": "out of memory",
}


@dataclass(frozen=True)
class Text:
    """The line contains ``has``, and ``match`` matches it."""

    has: str
    match: re.Pattern[str] | None

    def fits(self, line: str) -> bool:
        return self.has in line and (self.match is None or self.match.search(line) is not None)


@dataclass(frozen=True)
class Failure:
    """A failure in the data."""

    name: str
    role: str
    meaning: str
    codes: dict[str, str]
    texts: tuple[Text, ...]
    causes: tuple[str, ...]
    run: tuple[tuple[str, str], ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """All failures, with indices by code and by text."""

    failures: tuple[Failure, ...]
    by_code: dict[str, Failure]
    texts: tuple[tuple[Text, Failure], ...]


@functools.cache
def catalogue() -> Catalogue:
    """Load the data."""
    failures = tuple(
        _failure(item) for name in FILES for item in json.loads((DATA / f"{name}.json").read_text())
    )
    by_code = {code: failure for failure in failures for code in failure.codes}
    assert len(by_code) == sum(len(failure.codes) for failure in failures), "two failures have the same code"
    texts = tuple((text, failure) for failure in failures for text in failure.texts)
    return Catalogue(failures, by_code, texts)


def bounded(pattern: str) -> str:
    """``pattern`` with at most SPAN repetitions, which avoids quadratic time on long lines."""
    limits = {"*": f"{{0,{SPAN}}}", "+": f"{{1,{SPAN}}}"}
    return _TOKEN.sub(lambda token: limits.get(token[0], token[0]), pattern)


def _failure(fields: dict) -> Failure:
    texts = tuple(
        Text(text["has"], re.compile(bounded(text["match"])) if "match" in text else None)
        for text in fields["texts"]
    )
    run = tuple((item["command"], item["shows"]) for item in fields["run"])
    values = fields | {"texts": texts, "run": run}
    return Failure(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    )
