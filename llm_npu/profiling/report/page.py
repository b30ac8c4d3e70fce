"""The report as one HTML page that needs nothing else: no scripts, no other files."""

from __future__ import annotations

from . import plain, plots, tables
from .compare import Comparison
from .summary import Report

_TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Profile of {{ report.directory }}</title>
<link rel="icon" href="data:,">
<style>
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 70rem; margin: 2rem auto }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
.virtual { background: #fff3cd; border: 1px solid #e0c060; padding: .6rem 1rem }
ol.advice li { margin-bottom: .8rem } .stake { color: #b00020; white-space: nowrap }
.evidence, .remark { color: #555 }
.table { overflow-x: auto } table { border-collapse: collapse; font-size: 13px }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #e4e4e4; text-align: right; white-space: pre }
th.word, td.word { text-align: left } th { border-bottom: 2px solid #999 }
figure { margin: 1rem 0 } figcaption { font-weight: 600 } img { max-width: 100%; height: auto }
</style>
</head>
<body>
<h1>{{ heading }}</h1>
{% if report.virtual %}<p class="virtual">{{ virtual }}</p>{% endif %}
<h2 id="advice">Advice</h2>
{% if report.advice %}<ol class="advice">
{% for advice in report.advice %}<li><b>{{ advice.title }}</b>
{% if advice.at_stake %}<span class="stake">{{ text(advice.at_stake) }}</span>{% endif %}<br>
<span class="evidence">{{ advice.evidence }}</span><br>{{ advice.cure }}</li>
{% endfor %}</ol>{% else %}<p>Nothing stands out.</p>{% endif %}
{% macro show(table) %}<h2>{{ table.title }}</h2>
<div class="table"><table>
<thead><tr>{% for cell in table.columns %}<th{% if loop.index0 < table.words %} class="word"{% endif %}>
{{- cell }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}<tr>{% for cell in row %}
<td{% if loop.index0 < table.words %} class="word"{% endif %}>
{{- cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% if table.remark %}<p class="remark">{{ table.remark }}</p>{% endif %}{% endmacro %}
{% if comparison %}
<p>before: {{ comparison.before.directory }}<br>after: {{ comparison.after.directory }}</p>
{% for table in changes %}{{ show(table) }}{% endfor %}{% endif %}
{% for plot in plots %}<figure><figcaption>{{ plot.title }}</figcaption>
<img alt="{{ plot.title }}" src="{{ plot.address }}"></figure>
{% endfor %}
{% for table in tables %}{{ show(table) }}{% endfor %}
{% if report.notes %}<h2>Notes</h2>
<ul>{% for note in report.notes %}<li>{{ note }}</li>{% endfor %}</ul>{% endif %}
</body>
</html>
"""


def write(report: Report, comparison: Comparison | None = None, top: int = 30) -> str:
    """The whole page; ``comparison`` adds what changed since another profile, ``top`` limits operators."""
    from jinja2 import Environment, StrictUndefined

    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_TEMPLATE)
    return template.render(
        report=report,
        heading=plain.heading(report),
        virtual=plain.VIRTUAL,
        text=tables.text,
        comparison=comparison,
        changes=tables.of_comparison(comparison, top) if comparison else [],
        plots=plots.of(report),
        tables=tables.of(report, top),
    )
