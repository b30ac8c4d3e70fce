"""Plots of a run's records: the loss, and speed, gradient norm, waits and memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from llm_npu.core.atomic import new_file
from llm_npu.core.errors import naming
from llm_npu.training.metrics.recorder import Recorder

MIB = 2**20


@dataclass(frozen=True)
class Baseline:
    """The loss before any training: ``name`` has it, by ``formula``. ``unit`` of all losses."""

    loss: float
    name: str
    formula: str
    unit: str


def plot_loss(recorder: Recorder, baseline: Baseline, file: str | Path) -> None:
    """Write the loss curve as PNG: training and evaluation loss over the steps, and the baseline."""
    figure, axes = _subplots(figsize=(8, 4.5))
    axes.plot(*zip(*recorder.losses(), strict=True), linewidth=1, label="training")
    if evaluations := recorder.eval_losses():
        axes.plot(*zip(*evaluations, strict=True), marker="o", label="evaluation (held-out text)")
    axes.axhline(baseline.loss, ls="--", color="grey", lw=1, label=f"{baseline.name}: {baseline.formula}")
    axes.set(xlabel="step", ylabel=f"loss ({baseline.unit})", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    _save(figure, file)


def plot_run(recorder: Recorder, file: str | Path) -> None:
    """Write speed, gradient norm, shares of the step time and memory over the steps as one PNG."""
    records = [record for record in recorder.records if record.get("step_s", 0.0) > 0]
    figure, ((speed, norm), (waits, memory)) = _subplots(2, 2, figsize=(11, 6.5), sharex=True)
    _line(speed, records, "tokens_per_s")
    speed.set(ylabel="tokens/s", ylim=(0, None))
    if recorder.utilization:  # the same curve on another scale
        to_mfu = recorder.utilization.of(1.0)
        percent = speed.secondary_yaxis(
            "right", functions=(lambda y: 100 * to_mfu * y, lambda y: y / (100 * to_mfu))
        )
        percent.set_ylabel("MFU (%)")
    _line(norm, records, "grad_norm")
    norm.set(ylabel="norm of the gradients", ylim=(0, None))
    for name, label in (
        ("data", "waiting for data"),
        ("communication", "communicating"),
        ("exposed", "waiting for communication"),
    ):
        _line(waits, records, f"{name}_s", lambda record: 100 / record["step_s"], label)
    waits.set(ylabel="share of the step (%)", xlabel="step", ylim=(0, None))
    if waits.lines:
        waits.legend()
    _line(memory, records, "peak_memory", lambda record: 1 / MIB)
    memory.set(ylabel="peak memory of a device (MiB)", xlabel="step", ylim=(0, None))
    for axes in (speed, norm, waits, memory):
        axes.grid(alpha=0.3)
    _save(figure, file)


def _line(axes, records: list[dict], name: str, scale=lambda record: 1.0, label: str | None = None) -> None:
    points = [(record["step"], record[name] * scale(record)) for record in records if name in record]
    if points:
        axes.plot(*zip(*points, strict=True), linewidth=1, label=label)


def _subplots(*grid: int, **options):
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot  # not at the top: it takes long, and most imports plot nothing

    return pyplot.subplots(*grid, dpi=120, **options)


def _save(figure, file: str | Path) -> None:
    from matplotlib import pyplot

    figure.tight_layout()
    with naming(Path(file)), new_file(Path(file)) as new:
        figure.savefig(new, format="png")
    pyplot.close(figure)
