"""A report: the docstring of a program in tests/upstream/programs, and the rest of the file.

The docstring is a title, a sentence; the symptom and its cause; and these fields::

    :versions: paddlepaddle 3.1.0 to 3.3.1     the oldest release on which it was run comes first
    :device: cpu                               cpu, npu (the virtual NPU), or "npu, 2 processes"
    :environment: FLAGS_a=1                    optional
    :at: paddle/a.py:12 `the line's text`      lines of the installed package; of C++ files `the function`
    :prints: ...                               optional: what the program prints, the defect
    :error: ValueError: ...                    optional: a line on stderr; "..." is any text
    :ends: SIGSEGV                             optional: a signal, or "hangs"
    :should print: ...                         what it prints without the defect
    :change: ...                               the proposed change
    :workaround: llm_npu.patches.fix_a         functions and files of this project, or "none"
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
ROOT = PROGRAMS.parents[2]
FIELDS = ("versions", "device", "at", "should print", "change", "workaround")
OPTIONAL = ("environment", "prints", "error", "ends")
FIELD = re.compile(r"^:(\w[\w ]*):[ \t]*(.*(?:\n(?!:\w[\w ]*:).*)*)", re.MULTILINE)
DEVICES = {"cpu": 1, "npu": 1, "npu, 2 processes": 2, "npu, 4 processes": 4}
LIBRARIES = {"paddlepaddle": "Paddle", "paddlenlp": "PaddleNLP", "paddleformers": "PaddleFormers"}


@dataclass(frozen=True)
class Location:
    """A line of a source file, with ``quote`` in it. Line 0: a function of C++ sources, which wheels lack."""

    path: str
    line: int
    quote: str

    def installed(self) -> Path | None:
        """The file in the installed package; None for files that are in the library's sources only."""
        package, _, rest = self.path.partition("/")
        spec = importlib.util.find_spec(package)
        file = Path(spec.origin).parent / rest if spec and spec.origin else None
        return file if file is not None and file.is_file() else None


@dataclass(frozen=True)
class Report:
    """A defect, and the program that shows it. ``program`` is its text without the docstring."""

    file: Path
    title: str
    text: str
    program: str
    fields: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.file.parent.name}/{self.file.stem}"

    @property
    def distribution(self) -> str:
        """paddlepaddle, paddlenlp or paddleformers: whose defect it is."""
        return self.fields["versions"].split()[0]

    @property
    def oldest(self) -> dict[str, tuple[int, ...]]:
        """The oldest release of each library with which the program was run."""
        named = re.findall(r"(paddle\w+) (\d\S*)", self.fields["versions"])
        return {distribution: numbers(version) for distribution, version in named}

    @property
    def processes(self) -> int:
        return DEVICES[self.fields["device"]]

    @property
    def environment(self) -> dict[str, str]:
        return dict(entry.split("=", 1) for entry in self.fields.get("environment", "").split())

    @property
    def ends(self) -> str:
        return self.fields.get("ends", "exit 1" if "error" in self.fields else "exit 0")

    @property
    def workarounds(self) -> list[str]:
        """Empty where the field says "none"."""
        parts = (part.strip() for part in self.fields["workaround"].split(","))
        return [part for part in parts if part and part != "none"]

    @property
    def locations(self) -> list[Location]:
        places = []
        for line in self.fields["at"].splitlines():
            path, number, quote = re.fullmatch(r"([^\s:]+)(?::(\d+))? `(.+)`", line.strip()).groups()
            places.append(Location(path, int(number or 0), quote))
        return places


def numbers(version: str) -> tuple[int, ...]:
    """(3, 0, 0) for 3.0.0b4."""
    return tuple(map(int, re.findall(r"\d+", version.partition("b")[0])))


def read(file: Path) -> Report:
    """The report in ``file``. ValueError if a field is missing or unknown."""
    source = file.read_text(encoding="utf-8")
    (first, *_) = ast.parse(source).body
    description = ast.literal_eval(first.value)
    title, _, rest = description.strip().partition("\n\n")
    fields = {name: _dedent(value) for name, value in FIELD.findall(rest)}
    missing, unknown = set(FIELDS) - set(fields), set(fields) - {*FIELDS, *OPTIONAL}
    if missing or unknown:
        raise ValueError(
            f"{file}: lacks {sorted(missing)}, has {sorted(unknown)}; fields: {FIELDS}, {OPTIONAL}"
        )
    program = "\n".join(source.splitlines()[first.end_lineno :]).strip("\n")
    text = FIELD.split(rest)[0].strip()
    return Report(file, " ".join(title.split()).rstrip("."), text, program, fields)


def _dedent(value: str) -> str:
    return "\n".join(line.strip() for line in value.strip().splitlines())


@functools.cache
def reports() -> list[Report]:
    """All reports, Paddle's first, in the order of the page."""
    order = list(LIBRARIES)
    all_reports = [read(file) for file in sorted(PROGRAMS.rglob("*.py"))]
    return sorted(all_reports, key=lambda report: (order.index(report.distribution), report.name))
