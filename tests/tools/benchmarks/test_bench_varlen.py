"""python -m benchmarks varlen runs in tiny sizes and verifies its losses; speed is not asserted."""

import numpy as np
import pytest

from benchmarks import report, varlen
from benchmarks.contenders import FUSED, Processes
from benchmarks.contest import Wrong
from benchmarks.work import OPERATORS, filled

pytestmark = pytest.mark.slow

PROGRAM = ("-m", "benchmarks", "varlen")
TINY = (
    "--batch",
    "3",
    "--longest",
    "20",
    "--width",
    "64",
    "--depth",
    "2",
    "--vocabulary",
    "50",
    "--rounds",
    "1",
)


@pytest.fixture(scope="module")
def first_run(run_python, tmp_path_factory):
    file = tmp_path_factory.mktemp("bench_varlen") / "new.jsonl"
    return run_python(*PROGRAM, *TINY, "--json", file), file


def test_every_strategy_has_its_rows(first_run):
    done, _ = first_run
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines()]
    for strategy, names in varlen.TABLE.items():
        for name in names:
            rows_of_one = [row for row in rows if row[:2] == [strategy, name]]
            assert len(rows_of_one) == 2, (strategy, name)  # evaluation and training
            assert ("not installed" in rows_of_one[0]) == name.startswith("torch")


def test_records(first_run):
    times = [record for record in report.read(str(first_run[1])) if record["kind"] == "time"]
    assert len(times) == 2 * sum(map(len, varlen.TABLE.values()))
    assert all(record["median"] > 0 for record in times if "skipped" not in record)


def test_goals_compare_with_padding_in_torch():
    arguments = varlen.parse([*TINY])
    built = {strategy: varlen.case(strategy, True, arguments) for strategy in varlen.TABLE}
    seconds = {
        varlen.BASELINE: [2.1],
        ("packed varlen", "fused cpu"): [1.0],
        ("packed mask", "fused npu"): [1.1],
    }
    goals = list(varlen.goals(built, seconds, "on"))
    assert [record["met"] for record in goals] == [True, False]
    assert list(varlen.goals(built, {}, "on")) == []


def test_other_losses_stop(monkeypatch):
    arguments = varlen.parse([*TINY])
    built = {strategy: varlen.case(strategy, False, arguments) for strategy in varlen.TABLE}
    golden = OPERATORS["decoder"].golden
    monkeypatch.setattr(OPERATORS["decoder"], "golden", lambda *a: {"loss": golden(*a)["loss"] * 1.0001})
    who = [("packed varlen", name) for name in FUSED]
    with Processes(FUSED, 1, "off", "python3") as processes, pytest.raises(Wrong, match="the loss is"):
        varlen.prepare(built, who, processes)


def test_batches_hold_the_same_tokens():
    work = OPERATORS["decoder"]
    arrays = filled(work("padding", True, 5, 16, 64, 1, 9), "float32")
    packed, *_ = work("packed varlen", True, 5, 16, 64, 1, 9).batched(arrays)
    for strategy, size in (("padding", 16), ("dynamic padding", arrays["lengths"].max())):
        tokens, targets, positions, lengths = work(strategy, True, 5, 16, 64, 1, 9).batched(arrays)
        assert tokens.shape == targets.shape == positions.shape == (5, size)
        assert np.array_equal(tokens[tokens != 0], packed)
        assert np.array_equal((tokens != 0).sum(1), lengths)


def test_wrong_arguments_are_refused(run_python):
    done = run_python(*PROGRAM, "--width", "100")
    assert done.returncode == 2
    assert "multiple of 64" in done.stderr
