"""The acceptance result: ``result.json``, and ``index.html`` with the differences first."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from llm_npu.cann.chip import of_machine, of_operator_files, titles
from llm_npu.core.untrusted.plain_text import LAYOUT, printable
from llm_npu.report import html
from llm_npu.report.table import Table
from paddle_fused import strict_json
from paddle_fused.cann_installation import find_cann

from .journal import DIFFERS, LOST, Outcome
from .scrub import Scrubber

JSON, PAGE = "result.json", "index.html"
DISTRIBUTIONS = ("paddlepaddle", "paddle-custom-npu", "paddlenlp", "paddle-ascend-llm", "numpy")
LABELS = {"virtual": "virtual NPU on the host CPU, not a card", "card": "Ascend card"}
BANNERS = {
    "virtual": "This ran on the virtual NPU on a host's CPU, not on a card. It shows that the checks work; "
    "nothing on this page is evidence about a card.",
    "card": "This ran on Ascend cards.",
}
_BODY = """<style>td.word { white-space: pre-wrap; overflow-wrap: anywhere }
pre { font-size: 12px; overflow-x: auto }
.lost, .differs { color: #b00020 }</style>
<h1>{{ title }}</h1>
<h2>Differences from the virtual NPU</h2>
{% if result.differences %}{{ show(differences) }}{% else %}<p>None.</p>{% endif %}
<p class="{{ result.device }}">{{ banner }}</p>
{{ show(checks) }}
{% for check in result.checks %}<h2 id="{{ check.name }}">{{ check.title }}</h2>
<p class="{{ check.verdict }}">{{ check.verdict }}
{%- if check.left_out %}: {{ check.left_out }}{% endif %}</p>
{% if check.cases %}<details><summary>{{ counted(check.cases) }}</summary>{{ show(tables[check.name]) }}
</details>{% endif %}
{% if check.text %}<details><summary>report</summary><pre>{{ check.text }}</pre></details>{% endif %}
{% if check.log %}<details><summary>end of the log</summary><pre>{{ check.log }}</pre></details>
{% endif %}
{% endfor %}
<h2>Versions</h2>
<p>{% for name, version in result.versions.items() %}
{{- name }} {{ version }}{% if not loop.last %}, {% endif %}
{%- endfor %}</p>
"""


@dataclass(frozen=True)
class Finished:
    """A finished check.

    Attributes:
        cases: the outcomes of its cases.
        left_out: why the check did not run; "" if it ran.
        text: a report that the check produced.
        log: the end of its log.
    """

    name: str
    title: str
    cases: tuple[Outcome, ...] = ()
    seconds: float = 0.0
    left_out: str = ""
    text: str = ""
    log: str = ""

    @property
    def verdict(self) -> str:
        verdicts = {outcome.verdict for outcome in self.cases}
        return "left out" if self.left_out else next((v for v in (LOST, DIFFERS) if v in verdicts), "same")


@dataclass
class Result:
    """All results. ``device`` is "card" or "virtual"; ``cards`` is the number of cards used."""

    device: str
    cards: int
    seconds: float = 0.0
    checks: list[Finished] = field(default_factory=list)

    @property
    def label(self) -> str:
        return LABELS[self.device]

    @property
    def differences(self) -> list[tuple[str, Outcome]]:
        """Differences with the name of their check; lost cases first."""
        pairs = [(check.name, outcome) for check in self.checks for outcome in check.cases]
        pairs = [pair for pair in pairs if pair[1].verdict in (LOST, DIFFERS)]
        return sorted(pairs, key=lambda pair: pair[1].verdict != LOST)

    def as_dict(self, clean: Callable[[str], str]) -> dict[str, object]:
        """The content of the JSON file; text from other programs goes through ``clean``."""

        def cleaned(outcome: Outcome) -> dict[str, str]:
            fields = asdict(outcome)
            return {name: text if name == "verdict" else clean(text) for name, text in fields.items()}

        return {
            "device": self.device,
            "label": self.label,
            "cards": self.cards,
            "seconds": round(self.seconds, 1),
            "versions": versions(),
            "differences": [{"check": name, **cleaned(outcome)} for name, outcome in self.differences],
            "checks": [
                {
                    "name": check.name,
                    "title": check.title,
                    "verdict": check.verdict,
                    "seconds": round(check.seconds, 1),
                    "left_out": check.left_out,
                    "cases": [cleaned(outcome) for outcome in check.cases],
                    "text": clean(check.text),
                    "log": clean(check.log),
                }
                for check in self.checks
            ],
        }

    def write(self, folder: Path, scrubber: Scrubber) -> None:
        """Write both files atomically."""
        content = self.as_dict(lambda text: printable(scrubber.text(text), keep=LAYOUT))
        for name, text in ((JSON, strict_json.dumps(content, indent=1) + "\n"), (PAGE, page(content))):
            fresh = folder / f".{name}"
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, folder / name)


def versions(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> dict[str, str]:
    """Versions of packages that affect the results, and of the installed CANN components."""
    versions = {"python": platform.python_version(), "machine": platform.machine()}
    if chip := of_machine(environ, root):
        versions["chip"] = chip.title
    cann = find_cann(environ, root)
    if cann is not None and cann.folder.is_dir():
        versions["CANN"] = cann.version or "unknown"
        libraries = sorted(file.name for file in (cann.folder / "lib64").glob("libopapi*.so"))
        versions["operator libraries"] = ", ".join(libraries) or "none"
        versions["operators for"] = titles(of_operator_files(cann.folder / "opp"))
    for name in DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def page(content: Mapping) -> str:
    """The self-contained HTML page of ``content``, the result of ``Result.as_dict()``."""
    device = "virtual NPU" if content["device"] == "virtual" else f"{content['cards']} Ascend card(s)"
    columns = ["check", "case", "message", "expected", "actual"]
    differences = [[row[column] for column in columns] for row in content["differences"]]
    checks = [
        [check["name"], check["verdict"], counted(check["cases"]), f"{check['seconds']:.0f}"]
        for check in content["checks"]
    ]
    return html.page(
        _BODY,
        f"Acceptance: {device}",
        result=content,
        banner=BANNERS[content["device"]],
        differences=Table("", columns, differences, words=5),
        checks=Table("The checks", ["check", "verdict", "cases", "seconds"], checks, words=3),
        counted=counted,
        tables={check["name"]: _cases(check["cases"]) for check in content["checks"]},
    )


def counted(cases: Sequence[Mapping]) -> str:
    """Counts by verdict, for example "3 same, 1 differs"."""
    counts = Counter(case["verdict"] for case in cases)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _cases(cases: Sequence[Mapping]) -> Table:
    columns = ["case", "verdict", "message"]
    return Table("", columns, [[case[column] for column in columns] for case in cases], words=3)
