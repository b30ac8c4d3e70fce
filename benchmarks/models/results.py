"""Records and the table of models with and without fused operators."""

from __future__ import annotations

import statistics

from rich.table import Table

from benchmarks import report
from benchmarks.models.size import ModelSize
from benchmarks.models.turns import UNFUSED, WAYS, Turns

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
