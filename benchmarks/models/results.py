"""Records, the table and the chart of models with and without fused operators."""

from __future__ import annotations

import statistics

from rich.table import Table

from benchmarks import report
from benchmarks.models.size import ModelSize
from benchmarks.models.turns import FUSED, UNFUSED, WAYS, Turns

KIND_OF_MEMORY = {"train": "train", "prefill": "generation", "decode": "generation"}


def tokens(size: ModelSize, way: str) -> int:
    return size.batch * {"train": size.length, "prefill": size.prompt, "decode": size.new_tokens}[way]


def records(size: ModelSize, dtype: str, malloc: str, groups: list[Turns]) -> list[dict]:
    """One record per way and contender.

    ``gain`` is the ratio of the contender's tokens per second to the unfused model's, within its group.
    """
    all_records = []
    for way in WAYS:
        times: dict[str, list[float]] = {}
        gains: dict[str, float] = {}
        memory: dict[str, int] = {}
        launches: dict[str, int] = {}
        for turns in groups:
            medians = {
                name: statistics.median(measured) for name, measured in turns.seconds.get(way, {}).items()
            }
            gains |= {name: medians[UNFUSED] / median for name, median in medians.items()}
            memory |= turns.memory.get(KIND_OF_MEMORY[way], {})
            launches |= turns.launches if way == "train" else {}
            for name, seconds in turns.seconds.get(way, {}).items():
                times.setdefault(name, []).extend(seconds)
        for name, seconds in times.items():
            of = report.Timed(size.family, size.label, dtype, way, malloc, name)
            record = report.time_record(of, seconds, gain=gains[name], memory=memory[name])
            record["launches"] = launches.get(name)
            all_records.append({**record, "tokens_per_second": tokens(size, way) / record["median"]})
    return all_records


def table(records: list[dict], title: str) -> Table:
    """Tokens per second (relative to the unfused model), the peak memory of tensors on the device, and the
    number of kernels launched in a training step.
    """
    left = ("model", "dtype", "way", "contender")
    rich_table = report.blank(
        title, left, ("tokens/s", "x unfused", "ms", "spread", "memory MiB", "launches")
    )
    for record in records:
        if record["kind"] != "time":
            continue
        rich_table.add_row(
            record["operator"],
            record["dtype"],
            record["way"],
            record["contender"],
            f"{record['tokens_per_second']:.1f}",
            f"{record['gain']:.2f}",
            *(report.milliseconds(record[name]) for name in ("median", "spread")),
            f"{record['memory'] / 2**20:,.0f}",
            "" if record["launches"] is None else f"{record['launches']:,}",
        )
    return rich_table


def chart(file: str, records: list[dict]) -> None:
    """The gain by operator, family and way: tokens per second relative to the unfused model."""
    from matplotlib.figure import Figure  # imported late, because it is slow
    from matplotlib.patches import Rectangle

    times = [record for record in records if record["kind"] == "time" and record["contender"] != UNFUSED]
    ways = [way for way in WAYS if any(record["way"] == way for record in times)]
    models = list(dict.fromkeys((record["operator"], record["dtype"]) for record in times))
    contenders = sorted({record["contender"] for record in times}, key=lambda name: (name == FUSED, name))
    height = 0.8 / len(contenders)
    size = (4 * len(ways) + 2, 1.5 + 0.16 * len(models) * len(contenders))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(ways), sharey=True, squeeze=False)
    for axes, way in zip(panels[0], ways, strict=True):
        for position, name in enumerate(contenders):
            of = {
                (record["operator"], record["dtype"]): record["gain"]
                for record in times
                if (record["way"], record["contender"]) == (way, name)
            }
            rows = [models.index(model) + (position - (len(contenders) - 1) / 2) * height for model in of]
            axes.barh(rows, [gain - 1 for gain in of.values()], height, left=1, color=f"C{position}")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_xlabel(f"{way}: tokens/s / the unfused model's")
    panels[0][0].set_yticks(range(len(models)), [" ".join(model) for model in models], fontsize=8)
    panels[0][0].invert_yaxis()
    bars = [Rectangle((0, 0), 1, 1, color=f"C{position}") for position in range(len(contenders))]
    names = [name if name == FUSED else f"{name} alone" for name in contenders]
    figure.legend(bars, names, loc="outside lower center", ncols=len(names))
    malloc = " and ".join(sorted({record["malloc"] for record in times}))
    figure.suptitle(f"Tokens per second of the unfused model's: {report.title(records)}, malloc {malloc}")
    figure.savefig(file, dpi=120)
