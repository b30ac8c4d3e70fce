"""Records, goals and the table.

A record of kind "time" is one contender on one case with one link, in seconds. Settings also have:

    exposed     seconds beyond the matmuls alone
    gain        1 - median / serial
    ideal       end time of a lossless pipeline with the same number of chunks (ideal.bound), based on
    separate
                measurements of the chunks' matmuls and of the collective
    bound       the same if the processor that multiplies also handles the collective's data
    hidden      (serial - median) / (serial - bound)
"""

from __future__ import annotations

from rich.table import Table

from benchmarks import report, timing
from llm_npu.parallel.overlap import Product, Setting

from .cases import BACKWARD, BLOCKS, RANKS, Case
from .ideal import bound, mc2_chunks

HIDDEN_GOAL, CHOICE_GOAL, GOAL_SECONDS = 0.9, 1.03, 0.08
NOT_SETTINGS = ("product", "gradient", "collective", "planned", "upstream")


def records(case: Case, ratio: float, gbps: float | None, measurement: dict, handled: float) -> list[dict]:
    """``handled``: seconds by which the collective's copies and sums slow a concurrent matmul."""
    seconds = {name: timing.summary(times) for name, times in measurement["seconds"].items()}
    all_records = []
    for name, (median, _) in seconds.items():
        link = {"setting": name, "ratio": ratio, "gbps": gbps}
        record = report.time_record(_timed(case, name, ratio), measurement["seconds"][name], **link)
        if not name.startswith(NOT_SETTINGS):
            record |= _figures(case, name, seconds, measurement, handled)
        elif name in ("planned", "upstream"):
            record["gain"] = 1 - median / seconds["serial"].median
        all_records.append(record)
    return all_records + _goals(case, ratio, seconds, measurement, all_records)


def _timed(case: Case, name: str, ratio: float) -> report.Timed:
    return report.Timed(case.operator, case.label, case.dtype, case.way, "on", f"{name} at ratio {ratio:g}")


def product_of(case: Case) -> Product:
    width, other = (case.depth, case.columns) if case.way == "forward" else (case.columns, case.depth)
    rows = case.rows // RANKS if case.kind == "all_gather" else case.rows
    concurrent = case.way == BACKWARD and case.kind != "all_gather"
    return Product(case.kind, rows, width, other, case.dtype, RANKS, concurrent)


def _figures(case: Case, name: str, seconds: dict, measurement: dict, handled: float) -> dict:
    median, serial = seconds[name].median, seconds["serial"].median
    figures = {"gain": 1 - median / serial}
    if case.operator in BLOCKS:
        return figures
    alone = seconds["product"].median
    weight = seconds["gradient"].median if case.way == BACKWARD else 0.0
    product, setting = product_of(case), Setting.of(name)
    figures |= {"exposed": median - alone - weight}
    if name == "serial":
        return figures
    chunks = mc2_chunks(product) if name == "mc2" else setting.chunks
    multiplied = (
        seconds["product" if chunks == 1 else f"product:{chunks}"].median
        if chunks in (1, 2, 4, 8, 16)
        else alone
    )
    # The weight gradient needs all gathered rows, so it is computed last.
    concurrent, after = (0.0, weight) if case.kind == "all_gather" else (weight, 0.0)
    communicate = seconds["collective"].median
    figures["ideal"] = bound(product, chunks, multiplied, communicate, 0.0, concurrent) + after
    figures["bound"] = end = bound(product, chunks, multiplied, communicate, handled, concurrent) + after
    if serial > end:
        figures["hidden"] = (serial - median) / (serial - end)
    return figures


def _goals(case: Case, ratio: float, seconds: dict, measurement: dict, records: list[dict]) -> list[dict]:
    """The goals: the planner's choice is good, and the best pipeline and mc2 hide the communication."""
    goals = []

    def goal(text, contender, value, at_most):
        goals.append(report.goal_record(_timed(case, contender, ratio), report.Goal(text, value, at_most)))

    if "choice" in measurement:
        settings = {
            name: summary.median for name, summary in seconds.items() if not name.startswith(NOT_SETTINGS)
        }
        loss = settings[measurement["choice"]] / min(settings.values())
        goal("the planner's choice / the best setting", measurement["choice"], loss, CHOICE_GOAL)
    if ratio != 1 or case.operator in BLOCKS or seconds["product"].median < GOAL_SECONDS:
        return goals
    for backend in ("pipelined", "mc2"):
        hidden = {
            record["setting"]: record["hidden"]
            for record in records
            if record["setting"].startswith(backend) and "hidden" in record
        }
        if hidden:
            name = max(hidden, key=hidden.get)
            goal("left of what can be hidden", name, 1 - hidden[name], 1 - HIDDEN_GOAL)
    return goals


def table(records: list[dict], title: str) -> Table:
    right = ("ms ± spread", "gain", "exposed ms", "ideal ms", "bound ms", "hidden")
    rich_table = report.blank(title, ("work", "link", "setting"), right)
    for record in records:
        if record["kind"] != "time":
            continue
        link = "no limit" if record["gbps"] is None else f"{record['gbps']:.3g} GB/s (x {record['ratio']:g})"
        rich_table.add_row(
            f"{record['operator']} {record['sizes']} {record['dtype']} {record['way']}",
            link,
            record["setting"],
            f"{report.milliseconds(record['median'])} ± {report.milliseconds(record['spread'])}",
            _share(record.get("gain")),
            _milliseconds(record.get("exposed")),
            _milliseconds(record.get("ideal")),
            _milliseconds(record.get("bound")),
            _share(record.get("hidden")),
        )
    return rich_table


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else report.milliseconds(value)
