"""The report as a single HTML page."""

from __future__ import annotations

from llm_npu.report import html

from ..compare import Comparison
from ..summary import Report
from . import plain, plots, tables

_BODY = """<h1>{{ heading }}</h1>
{% if report.virtual %}<p class="virtual">{{ virtual }}</p>{% endif %}
<h2 id="advice">Advice</h2>
{% if report.advice %}<ol class="advice">
{% for advice in report.advice %}<li><b>{{ advice.title }}</b>
{% if advice.at_stake %}<span class="stake">{{ text(advice.at_stake) }}</span>{% endif %}<br>
<span class="evidence">{{ advice.evidence }}</span><br>{{ advice.fix }}</li>
{% endfor %}</ol>{% else %}<p>Nothing stands out.</p>{% endif %}
{% if comparison %}
<p>before: {{ comparison.before.source }}<br>after: {{ comparison.after.source }}</p>
{% for table in changes %}{{ show(table) }}{% endfor %}{% endif %}
{% for plot in plots %}{{ figure(plot) }}{% endfor %}
{% for table in tables %}{{ show(table) }}{% endfor %}
{% if report.notes %}<h2>Notes</h2>
<ul>{% for note in report.notes %}<li>{{ note }}</li>{% endfor %}</ul>{% endif %}
"""


def write(report: Report, comparison: Comparison | None = None, top: int = 30) -> str:
    """The complete page. ``comparison`` adds changes since another profile, ``top`` limits operators."""
    return html.page(
        _BODY,
        f"Profile of {report.source}",
        report=report,
        heading=plain.heading(report),
        virtual=plain.VIRTUAL,
        text=tables.text,
        comparison=comparison,
        changes=tables.of_comparison(comparison, top) if comparison else [],
        plots=plots.of(report),
        tables=tables.of(report, top),
    )
