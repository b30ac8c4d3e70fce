"""Self-contained HTML pages with tables and plots, without scripts or external files."""

from __future__ import annotations

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
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
{% macro figure(plot) %}<figure><figcaption>{{ plot.title }}</figcaption>
<img alt="{{ plot.title }}" src="{{ plot.address }}"></figure>
{% endmacro %}
"""
_FOOT = """</body>
</html>
"""


def page(body: str, title: str, **values: object) -> str:
    """Render the Jinja template ``body`` with ``values``.

    The template can call ``show(table)`` with a ``table.Table`` and ``figure(plot)`` with a ``plots.Plot``.
    """
    from jinja2 import Environment, StrictUndefined

    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_HEAD + body + _FOOT)
    return template.render(title=title, **values)
