"""The report's plots, as in-memory SVG files."""

from __future__ import annotations

import base64
import contextlib
import io
import warnings
from dataclasses import dataclass

from llm_npu.report.table import shortened

from .. import classes
from ..measure import EXPOSED, IDLE, PRIORITY
from ..summary import Report

COLOURS = {
    classes.ATTENTION: "#4c78a8",
    classes.MATMUL: "#72b7b2",
    classes.VECTOR: "#54a24b",
    classes.AICPU: "#e45756",
    classes.HOST: "#b279a2",
    EXPOSED: "#f58518",
    classes.COPY: "#9d755d",
    IDLE: "#d8d8d8",
}
_POINTS = 2000  # maximum points of a memory line
_STEPS = 40  # maximum bars of one plot


@dataclass(frozen=True)
class Plot:
    """A picture and its alternative text."""

    title: str
    svg: bytes

    @property
    def address(self) -> str:
        """The picture as a data: URL, so that a page is self-contained."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg).decode()


def of(report: Report) -> list[Plot]:
    """Plots of time by class, top operators, steps and memory, if the profile has them."""
    with style():
        plots = [_classes(report), _operators(report)]
        if report.steps:
            plots.append(_steps(report))
        if any(len(rank.memory[0]) for rank in report.ranks):
            plots.append(_memory(report))
    return plots


@contextlib.contextmanager
def style():
    """Context for reproducible SVG bytes that store text as text; needs no display."""
    import matplotlib

    matplotlib.use("Agg")
    options = {"svg.hashsalt": "llm_npu", "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}
    with matplotlib.rc_context(options), warnings.catch_warnings():
        # The viewer draws the text with its own fonts.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def figure(height: float):
    """A page-wide figure and its axes; ``height`` in inches."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(9, height), layout="constrained")


def drawn(title: str, figure) -> Plot:
    """Render a figure and close it."""
    from matplotlib import pyplot

    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return Plot(title, out.getvalue())


def _stacked(axes, labels: list[str], spent: list[dict[str, int]]) -> None:
    left = [0.0] * len(labels)
    for name in PRIORITY:
        widths = [parts[name] / 1e6 for parts in spent]
        if any(widths):
            axes.barh(range(len(labels)), widths, left=left, color=COLOURS[name], label=name, height=0.7)
            left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)


def _classes(report: Report) -> Plot:
    picture, axes = figure(1.6 + 0.3 * len(report.ranks))
    _stacked(axes, [f"rank {rank.rank}" for rank in report.ranks], [rank.spent() for rank in report.ranks])
    return drawn("Time of each rank by class", picture)


def _operators(report: Report) -> Plot:
    shown = report.operators[:12]
    picture, axes = figure(0.9 + 0.25 * len(shown))
    colours = [
        COLOURS[EXPOSED if operator.work == classes.COMMUNICATION else operator.work] for operator in shown
    ]
    # By position: the same operator may run on two engines.
    axes.barh(range(len(shown)), [operator.time / 1e6 for operator in shown], color=colours)
    axes.set_yticks(
        range(len(shown)), [f"{shortened(operator.name)} ({operator.work})" for operator in shown]
    )
    axes.invert_yaxis()
    axes.set_xlabel("ms, sum over ranks")
    return drawn("Top operators", picture)


def _steps(report: Report) -> Plot:
    steps = [(rank.rank, step) for rank in report.ranks for step in rank.steps][:_STEPS]
    picture, axes = figure(1.3 + 0.22 * len(steps))
    _stacked(
        axes,
        [f"rank {rank} {shortened(step.name)}" for rank, step in steps],
        [step.spent for _, step in steps],
    )
    title = "Time of each step by class"
    return drawn(f"{title} (the first {_STEPS})" if report.steps > _STEPS else title, picture)


def _memory(report: Report) -> Plot:
    picture, axes = figure(2.8)
    for rank in report.ranks:
        when, *sizes = rank.memory
        every = max(1, len(when) // _POINTS)
        for size, name, line in zip(sizes, ("in use", "reserved"), ("-", ":"), strict=True):
            if size.any():
                label = f"rank {rank.rank} {name}"
                axes.step(when[::every] / 1e6, size[::every] / 2**20, line, where="post", label=label, lw=1)
    axes.set(xlabel="ms since the profile's start", ylabel="MiB", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(ncols=2, frameon=False)
    return drawn("Memory", picture)
