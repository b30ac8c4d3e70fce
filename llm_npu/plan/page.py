"""The planner's answer as a self-contained HTML page."""

from __future__ import annotations

from llm_npu.profiling.report.pages import plots
from llm_npu.profiling.report.pages.plots import Plot
from llm_npu.report import html

from . import table
from .answer import GIB, Answer

_BODY = """<h1>{{ title }}</h1>
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}{% if command %}<p><code>{{ command }}</code></p>{% endif %}
{% for plot in plots %}{{ figure(plot) }}{% endfor %}
{% for table in tables %}{{ show(table) }}{% endfor %}
<h2>Notes</h2>
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>
"""
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")
COLOURS += ("#eeca3b", "#2f4b7c", "#a05195")


def write(answer: Answer) -> str:
    """The complete page."""
    return html.page(
        _BODY,
        f"Plan of {answer.shape.name} on {answer.layout.cards} cards",
        sentences=table.sentences(answer),
        command=table.command(answer),
        plots=pictures(answer),
        tables=table.tables(answer),
        notes=table.notes(answer),
    )


def pictures(answer: Answer) -> list[Plot]:
    """Time and memory of a step, and scaling."""
    with plots.style():
        return [_step(answer), _memory(answer), _scaling(answer)]


def _step(answer: Answer) -> Plot:
    picture, axes = plots.figure(1.9)
    left = 0.0
    for number, (name, seconds) in enumerate(answer.shares.items()):
        axes.barh(0, seconds, left=left, color=COLOURS[number % len(COLOURS)], label=name)
        left += seconds
    axes.set_yticks([])
    axes.set_xlabel("s")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    return plots.drawn("Time per step", picture)


def _memory(answer: Answer) -> Plot:
    picture, axes = plots.figure(3.4)
    moments = answer.memory.fullest.moments
    names = list(dict.fromkeys(name for moment in moments for name in moment.parts))
    bottom = [0.0] * len(moments)
    for number, name in enumerate(names):
        heights = [moment.parts.get(name, 0) / GIB for moment in moments]
        axes.bar(
            range(len(moments)), heights, bottom=bottom, color=COLOURS[number % len(COLOURS)], label=name
        )
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylim(0, 1.08 * max(*bottom, answer.limit / GIB))
    axes.axhline(answer.limit / GIB, color="#444", ls="--", lw=1, label="available")
    axes.set_xticks(range(len(moments)), [moment.phase.replace(", ", ",\n") for moment in moments])
    axes.set_ylabel("GiB")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    return plots.drawn(f"Memory per card during a step, stage {answer.memory.fullest.stage}", picture)


def _scaling(answer: Answer) -> Plot:
    picture, axes = plots.figure(3.2)
    lines = (True, "growing batch", COLOURS[0], 10), (False, "fixed batch", COLOURS[1], -16)
    for grows, label, colour, above in lines:
        runs = [scale for scale in answer.scaling if scale.grows == grows and scale.speed]
        speeds = [scale.speed for scale in runs]
        axes.plot([scale.cards for scale in runs], speeds, "o-", color=colour, label=label)
        for scale in runs[:: max(1, len(runs) // 3)]:
            place = {"xytext": (0, above), "textcoords": "offset points", "ha": "center", "color": colour}
            axes.annotate(scale.limit, (scale.cards, scale.speed), **place)
        if stopped := [scale for scale in answer.scaling if scale.grows == grows and not scale.speed]:
            last = stopped[-1]
            if last.cards > max((scale.cards for scale in runs), default=0):
                axes.annotate(last.limit, (last.cards, 0), ha="right", va="bottom", color=colour)
    cards = sorted({scale.cards for scale in answer.scaling})
    axes.set_xscale("log", base=2)
    axes.set_xticks(cards, [str(number) for number in cards])
    top = 1.25 * max((scale.speed for scale in answer.scaling), default=1.0)
    axes.set(
        xlabel="cards", ylabel="tokens/s per card", xlim=(cards[0] / 2, cards[-1] * 2), ylim=(0, top or 1.0)
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower left", frameon=False)
    return plots.drawn(f"Scaling of {answer.scaled}, with the largest loss of time", picture)
