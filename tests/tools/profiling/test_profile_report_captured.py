"""A report on what two ranks of the virtual NPU have recorded has the totals of the raw rows."""

from itertools import pairwise
from pathlib import Path

import pytest
import ranks
from profiled.files import nanoseconds, table

from llm_npu.profiling.report import summary
from llm_npu.profiling.report.pages import plain
from paddle_fused.context_parallel import EXCHANGE_EVENT, RING_EVENT

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "profiled" / "two_ranks.py"
SPLIT_SEQUENCES = PROGRAM.with_name("split_sequences.py")


def naive(rows: list[dict[str, str]]) -> dict[str, int]:
    """Sums over op_summary's rows, going from one border of a task to the next."""
    tasks = []
    for row in rows:
        start = nanoseconds(row["Task Start Time(us)"])
        collective = row["Task Type"] == "HCCL"
        tasks.append((start, start + nanoseconds(row["Task Duration(us)"]), collective))
    borders = sorted({border for start, end, _ in tasks for border in (start, end)})
    totals = {"communication": 0, "hidden": 0, "exposed": 0, "computing": 0, "idle": 0}
    for begin, end in pairwise(borders):
        active = {collective for start, stop, collective in tasks if start <= begin and end <= stop}
        totals["communication"] += (True in active) * (end - begin)
        totals["computing"] += (False in active) * (end - begin)
        totals["hidden"] += (active == {True, False}) * (end - begin)
        totals["exposed"] += (active == {True}) * (end - begin)
        totals["idle"] += (not active) * (end - begin)
    return totals | {"window": borders[-1] - borders[0]}


def test_totals_of_two_ranks(tmp_path):
    ranks.run(PROGRAM, 2, tmp_path / "ranks", tmp_path / "profile")
    report = summary.build(tmp_path / "profile")
    assert report.virtual and report.notes == []
    assert [(rank.rank, len(rank.steps)) for rank in report.ranks] == [(0, 2), (1, 2)]
    for rank in report.ranks:
        rows = table(tmp_path / "profile" / f"rank_{rank.rank}", "op_summary")
        expected = naive(rows)
        for name in ("communication", "hidden", "exposed", "computing"):
            assert getattr(rank, name) == expected[name], name
        # Steps begin before their first task and end after their last one: idle, too.
        assert rank.idle - expected["idle"] == rank.window - expected["window"] >= 0
        assert 0 <= rank.launch_bound <= rank.idle
        assert sum(step.time for step in rank.steps) <= rank.window
        for operator in rank.operators:
            same = [row for row in rows if row["OP Type"] == operator.name]
            times = [nanoseconds(row["Task Duration(us)"]) for row in same]
            assert (operator.calls, operator.time, operator.longest) == (len(same), sum(times), max(times))
    products = next(operator for operator in report.operators if operator.name == "matmul")
    assert (products.work, products.dtypes, products.shapes) == ("matmul", "float32", "256,256;256,256")
    assert report.stragglers.compared == 6
    assert "virtual NPU on a host CPU" in plain.write(report)


def test_transfers_of_split_sequences(tmp_path):
    ranks.run(SPLIT_SEQUENCES, 2, tmp_path / "ranks", tmp_path / "profile")
    report = summary.build(tmp_path / "profile")
    for rank in report.ranks:
        rows = table(tmp_path / "profile" / f"rank_{rank.rank}", "op_summary")
        rows.sort(key=lambda row: nanoseconds(row["Task Start Time(us)"]))
        collective = [row for row in rows if row["Task Type"] == "HCCL"]
        computing = [row for row in rows if row["Task Type"] != "HCCL"]
        # Key and value are sent and received once; query, key, value and output are exchanged.
        parts = {RING_EVENT: collective[: 2 * 2], EXCHANGE_EVENT: collective[2 * 2 :]}
        assert len(parts[EXCHANGE_EVENT]) == 4 * 2
        assert set(rank.transfers) == set(parts)
        for name, own in parts.items():
            transfers = rank.transfers[name]
            assert transfers.calls == len(own)
            assert transfers.time == sum(nanoseconds(row["Task Duration(us)"]) for row in own)
            assert transfers.alone == naive([*own, *computing])["exposed"]
    shown = plain.write(report)
    assert RING_EVENT in shown and EXCHANGE_EVENT in shown
