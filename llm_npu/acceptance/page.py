"""The result as a self-contained HTML page. It begins with the differences from the virtual NPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from llm_npu.profiling.report.pages import html
from llm_npu.profiling.report.pages.table import Table

_BODY = """<style>td.word { white-space: pre-wrap; overflow-wrap: anywhere }
pre { font-size: 12px; overflow-x: auto }
.lost, .differs { color: #b00020 }</style>
<h1>{{ title }}</h1>
<h2>What differs from the virtual NPU</h2>
{% if result.differences %}{{ show(differences) }}{% else %}<p>Nothing of what was looked at.</p>{% endif %}
<p class="{{ result.device }}">{{ banner }}</p>
{{ show(pieces) }}
{% for piece in result.pieces %}<h2 id="{{ piece.name }}">{{ piece.title }}</h2>
<p class="{{ piece.verdict }}">{{ piece.verdict }}
{%- if piece.left_out %}: {{ piece.left_out }}{% endif %}</p>
{% if piece.checks %}<details><summary>{{ counted(piece.checks) }}</summary>{{ show(tables[piece.name]) }}
</details>{% endif %}
{% if piece.text %}<details><summary>report</summary><pre>{{ piece.text }}</pre></details>{% endif %}
{% if piece.log %}<details><summary>the end of what it printed</summary><pre>{{ piece.log }}</pre></details>
{% endif %}
{% endfor %}
<h2>Versions</h2>
<p>{% for name, version in result.versions.items() %}
{{- name }} {{ version }}{% if not loop.last %}, {% endif %}
{%- endfor %}</p>
"""
BANNERS = {
    "virtual": "This is the virtual NPU on a host's CPU, not a card. It shows that the examination works; "
    "nothing on this page is evidence about a card.",
    "card": "This ran on Ascend cards.",
}
COLUMNS = ["check", "verdict", "what was found"]


def write(content: Mapping) -> str:
    """The page of ``content``, which is ``Result.as_dict()``."""
    device = "virtual NPU" if content["device"] == "virtual" else f"{content['cards']} Ascend card(s)"
    rows = [
        [each["piece"], each["check"], each["what"], each["expected"], each["found"]]
        for each in content["differences"]
    ]
    return html.page(
        _BODY,
        f"Acceptance: {device}",
        result=content,
        banner=BANNERS[content["device"]],
        differences=Table("", ["piece", "check", "what", "expected", "found"], rows, words=5),
        pieces=Table("The pieces", ["piece", "verdict", "checks", "seconds"], _pieces(content), words=3),
        counted=counted,
        tables={piece["name"]: _checks(piece) for piece in content["pieces"]},
    )


def _pieces(content: Mapping) -> list[list[str]]:
    return [
        [piece["name"], piece["verdict"], counted(piece["checks"]), f"{piece['seconds']:.0f}"]
        for piece in content["pieces"]
    ]


def counted(checks: Sequence[Mapping]) -> str:
    """For example "3 same, 1 differs"."""
    counts = Counter(check["verdict"] for check in checks)
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _checks(piece: Mapping) -> Table:
    rows = [[check["check"], check["verdict"], check["what"]] for check in piece["checks"]]
    return Table("", COLUMNS, rows, words=3)
