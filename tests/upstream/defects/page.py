"""The page of the documentation: a table of all reports, and a section for each."""

from __future__ import annotations

import textwrap

from .fixed import FIXED
from .report import LIBRARIES, Location, Report, reports

# Where the sources of the tested releases are: package -> repository, commit, folder.
SOURCES = {
    "paddle": ("PaddlePaddle/Paddle", "7688495538f4d6c1893f084dd238a402e8f68ab6", "python/paddle/"),
    "paddlenlp": ("PaddlePaddle/PaddleNLP", "a286abc1063e516ed56b746fcca33bedce5fcef3", "paddlenlp/"),
    "paddleformers": (
        "PaddlePaddle/PaddleFormers",
        "d46aa49accaaeb9b8cc3598737bf6c62b816c63f",
        "paddleformers/",
    ),
}
ENDS = {"hangs": "and hangs", "exit 0": "", "exit 1": ""}


def page() -> str:
    """All reports in Markdown."""
    parts = []
    for distribution, library in LIBRARIES.items():
        chosen = [report for report in reports() if report.distribution == distribution]
        if chosen:
            parts += [f"## {library}", _contents(chosen), *map(_section, chosen)]
    return "\n\n".join([*parts, "## Fixed in later releases", _fixed()])


def _contents(chosen: list[Report]) -> str:
    rows = ["| defect | runs on | versions |", "|---|---|---|"]
    for report in chosen:
        device = report.fields["device"].replace("npu", "the virtual NPU").replace("cpu", "the CPU place")
        rows.append(f"| [{report.title}](#{_anchor(report)}) | {device} | {report.fields['versions']} |")
    return "\n".join(rows)


def _anchor(report: Report) -> str:
    return report.name.replace("/", "-").replace("_", "-")


def _section(report: Report) -> str:
    fields = report.fields
    prints = [line for line in fields.get("prints", "").splitlines() if line]
    prints += [fields["error"]] if "error" in fields else []
    ends = ENDS.get(report.ends, f"and ends with {report.ends}")
    shown = "\n".join([*prints, *([f"({ends})"] if ends else [])])
    how = _how(report)
    return "\n\n".join(
        [
            f'<a id="{_anchor(report)}"></a>',
            f"### {report.title}",
            report.text.replace("``", "`"),
            f"Versions: {fields['versions']}. {how}",
            f"```python\n{report.program}\n```",
            f"It prints\n\n```text\n{shown}\n```",
            f"and should print\n\n```text\n{fields['should print']}\n```",
            "Where: " + ", ".join(map(_place, report.locations)) + ".",
            "Proposed change: " + _flowing(fields["change"]),
            f"Workaround here: {', '.join(f'`{name}`' for name in report.workarounds) or 'none'}.",
        ]
    )


def _how(report: Report) -> str:
    """How to run the program."""
    set_first = "".join(f"{name}={value} " for name, value in report.environment.items())
    file = report.file.name
    if report.processes > 1:
        command = f"{set_first}python -m virtual_npu -m paddle.distributed.launch "
        command += f"--nproc_per_node {report.processes} {file}"
    elif report.fields["device"] == "npu":
        command = f"{set_first}python -m virtual_npu {file}"
    else:
        command = f"{set_first}python {file}"
    return f"Run: `{command}`"


def _place(location: Location) -> str:
    package, _, rest = location.path.partition("/")
    repository, commit, folder = SOURCES.get(package, SOURCES["paddle"])
    path = f"{folder}{rest}" if location.path.endswith(".py") else location.path
    line = f"#L{location.line}" if location.line else ""
    shown = f"{path}:{location.line}" if location.line else path
    return f"[{shown}](https://github.com/{repository}/blob/{commit}/{path}{line}) (`{location.quote}`)"


def _flowing(text: str) -> str:
    return textwrap.fill(text, 10**6).replace("``", "`")


def _fixed() -> str:
    rows = ["| workaround here | defect | in | fixed in |", "|---|---|---|---|"]
    rows += [f"| `{patch.workaround}` | {patch.defect} | {patch.within} | {patch.since} |" for patch in FIXED]
    return "\n".join(rows)
