"""Generates pages and tables of the documentation from the code when the site is built.

``<!-- generated: NAME -->`` in a page of docs/ marks the place of a table, or of the whole page (PARTS).
The build replaces the mark and the sentence below it, which is for readers of the sources.
``python docs/generated_pages.py NAME`` prints a part. Slow pages are written to build/pages by separate
commands; a page there replaces the page of the same name in docs/.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import typing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MADE = ROOT / "build/pages"
SOURCES = [ROOT, *(ROOT / "tests" / name for name in ("shared", "virtual_npu", "upstream"))]
MARK = re.compile(r"<!-- generated: (\w+) -->(?:\n\*[^\n]+\*)?")
CHINESE_LINE_END = re.compile(r"(?<=[\u3000-\u9fff\uff00-\uffef])\n *(?=[\u3000-\u9fff\uff00-\uffef])")

HEAD = """# Flags

The flags of `llm-npu train`; flags of PaddleNLP's `TrainingArguments` come last. A YAML or
JSON file (`--config`) uses the same names. Flags that are true by default have a `--no_` form.
"""


def on_config(config):
    """Called by mkdocs: the navigation gets a page for each registered operator."""
    sys.path += map(str, SOURCES)  # here, because mkdocs undoes changes made at import
    from paddle_fused import registry

    (reference,) = (section["Reference"] for section in config.nav if "Reference" in section)
    (operators,) = (entry["Operators"] for entry in reference if "Operators" in entry)
    operators += [{name: f"operators/{name}.md"} for name in sorted(registry.operators())]
    return config


def on_page_markdown(markdown, page, **_):
    """Called by mkdocs, with the text of each page."""
    generated = MADE / page.file.src_uri
    if generated.exists():
        return generated.read_text(encoding="utf-8")
    markdown = CHINESE_LINE_END.sub("", markdown)  # a browser would show a space
    return MARK.sub(lambda mark: PARTS[mark[1]](), markdown)


def flags() -> str:
    """The page of the flags."""
    from llm_npu import config

    sections = itertools.groupby(config.flags().values(), lambda flag: flag.section)
    return "\n".join([HEAD, *(f"## {title}\n\n{_table(members)}" for title, members in sections)])


def _table(flags) -> str:
    rows = ["| flag | type | default | | no effect |", "|---|---|---|---|---|"]
    for flag in flags:
        about = [flag.help, flag.limits and f"Accepted: {flag.limits}."]
        if flag.aliases:
            about.append(f"Also: {', '.join(f'`--{alias}`' for alias in flag.aliases)}.")
        why = "; ".join(reason.why for reason in flag.no_effect)
        cells = [
            f"`--{flag.name}`",
            _type(flag.kind),
            f"`{flag.default}`",
            " ".join(filter(None, about)),
            why,
        ]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _type(kind: type) -> str:
    return str(kind).replace("typing.", "") if typing.get_args(kind) else kind.__name__


def rules() -> str:
    """The page of CANN's rules."""
    from paddle_fused.contracts.__main__ import page

    return page()


def api_sweep() -> str:
    """The page of the public APIs on npu, without measured results."""
    from api_sweep.document import document

    return document()


def operators() -> str:
    """The table of operators, with the first paragraph of their docstrings."""
    from paddle_fused import registry

    rows = ["| operator | computes |", "|---|---|"]
    for name, operator in sorted(registry.operators().items()):
        summary = " ".join(operator.function().__doc__.strip().partition("\n\n")[0].split()).rstrip(".")
        shown = summary.replace("``", "`") if "``" in summary else f"`{summary}`"
        rows.append(f"| [`{name}`](operators/{name}.md) | {shown} |")
    return "\n".join(rows)


def backends() -> str:
    """The table of operators and backends, from a separate process, which activates the virtual NPU."""
    command = [sys.executable, "-m", "paddle_fused.info", "--markdown"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def checks() -> str:
    """The table of the doctor's checks, from their docstrings."""
    from llm_npu.doctor.checks import described

    rows = [f"| `{name}` | {examines} | {problem} |" for name, examines, problem in described()]
    return "\n".join(["| check | examines | is a problem |", "|---|---|---|", *rows])


def settings() -> str:
    """The environment variables of the virtual NPU and of the host kernels."""
    from virtual_npu.settings import SETTINGS

    rows = ["| variable | meaning | accepted | default |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {setting.meaning} | {setting.accepts} | {setting.default} |"
        for name, setting in SETTINGS.items()
    ]
    return "\n".join(rows)


def card_variables() -> str:
    """The environment variables that only a card's libraries read."""
    from llm_npu.config.no_effect import OF_A_CARD

    return ", ".join(f"`{name}`" for name in OF_A_CARD)


def upstream_failures() -> str:
    """The failures of upstream's unit tests with known reasons."""
    known = json.loads((ROOT / "scripts/upstream_tests/known.json").read_text(encoding="utf-8"))
    rows: dict[str, list[str]] = {}
    for reason in known["reasons"]:
        rows.setdefault(reason["why"], []).append(reason.get("file", "*"))
    lines = ["| reason | test files |", "|---|---|"]
    for why, files in rows.items():
        named = "any" if "*" in files else ", ".join(f"`{file}`" for file in dict.fromkeys(files))
        lines.append(f"| {why} | {named} |")
    return "\n".join(lines)


def upstream_defects() -> str:
    """The reports of defects in Paddle and its libraries."""
    from defects.page import page

    return page()


PAGES = (flags, rules, api_sweep)
TABLES = (operators, backends, checks, settings, card_variables, upstream_failures, upstream_defects)
PARTS = {generator.__name__: generator for generator in (*PAGES, *TABLES)}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PARTS:
        sys.exit(f"usage: python docs/generated_pages.py {'|'.join(PARTS)}")
    sys.path += map(str, SOURCES)
    print(PARTS[sys.argv[1]]())
