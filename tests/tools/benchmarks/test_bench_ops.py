"""python -m benchmarks ops runs in tiny sizes, verifies, says what is missing or wrong; speed is not judged.

torch is not installed with the tests: its place is taken by an interpreter without it, or by one that fails.
"""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import report, timing
from benchmarks.contenders import CONTENDERS, Failed, Process, Processes
from benchmarks.contest import Wrong
from benchmarks.ops import cases, limits
from benchmarks.ops.measure import Limits, times
from benchmarks.work import OPERATORS, Unavailable, filled

pytestmark = pytest.mark.slow

PROGRAM = ("-m", "benchmarks", "ops")
ONLY = "swiglu 64x256 float32 fwd"


@pytest.fixture(scope="module")
def first_run(run_python, tmp_path_factory):
    """The result on one operator with every contender, and the files that it wrote."""
    folder = tmp_path_factory.mktemp("bench_ops")
    written = ["--json", folder / "new.jsonl"]
    done = run_python(*PROGRAM, "--quick", "--only", ONLY, "--rounds", 2, *written)
    return done, folder


def test_every_contender_has_a_column(first_run):
    done, _ = first_run
    assert done.returncode == 0, done.stderr
    for name in CONTENDERS:
        assert name in done.stdout
    assert "not installed" in done.stdout
    assert "limit copy (GB/s)" in done.stdout
    assert "goal " in done.stdout


def test_records(first_run):
    records = report.read(str(first_run[1] / "new.jsonl"))
    assert records[0]["kind"] == "machine"
    assert records[0]["gemm"]["float32"] > 0
    times = [record for record in records if record["kind"] == "time"]
    assert {record["contender"] for record in times} == set(CONTENDERS)
    for record in times:
        if record["contender"].startswith("torch"):
            assert record["skipped"] == "not installed"
        else:
            assert record["median"] > 0
            assert np.isclose(record["share"], record["limit"] / record["median"])
    assert all(isinstance(record["met"], bool) for record in records if record["kind"] == "goal")


def test_compare_prints_ratios(first_run, run_python):
    older = first_run[1] / "new.jsonl"
    names = ["--contenders", "fused cpu", "--compare", older]
    done = run_python(*PROGRAM, "--quick", "--only", f"{ONLY}+bwd", "--rounds", 1, *names)
    assert done.returncode == 0, done.stderr
    assert "new / old" in done.stdout
    rows = [
        line
        for line in done.stdout.splitlines()
        if "malloc on" in line and "fused cpu" in line and "│" in line
    ]
    assert len(rows) == 1
    float(rows[0].split("│")[-2])


def test_what_is_no_record_is_refused(run_python, tmp_path):
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("{}\n")
    done = run_python(*PROGRAM, "--quick", "--compare", wrong)
    assert done.returncode == 2
    assert "contains no times" in done.stderr


def test_unknown_contender_is_refused(run_python):
    done = run_python(*PROGRAM, "--contenders", "fused gpu")
    assert done.returncode == 2
    assert "unknown 'fused gpu'" in done.stderr


@pytest.mark.parametrize(
    "words, message",
    [
        (["--only", "nosuch"], "matches no case"),
        (["--json", "no/folder/new.jsonl"], "the folder no/folder does not exist"),
        (["--torch-python", "no/python"], "no/python is not a program"),
    ],
)
def test_wrong_options_are_refused_before_measuring(run_python, words, message):
    done = run_python(*PROGRAM, "--quick", *words)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not done.stdout


def test_a_contender_that_ends_is_reported(run_python, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho cannot start >&2\nexit 3\n")
    broken.chmod(0o755)
    done = run_python(*PROGRAM, "--quick", "--only", ONLY, "--torch-python", broken)
    assert done.returncode == 1
    assert "torch eager: the process ended with status 3" in done.stderr


@pytest.fixture(scope="module")
def processes():
    with Processes(("fused cpu", "fused npu", "composed", "paddle"), 1, "off", "python3") as started:
        yield started


ENOUGH = [case for case in cases.cases(cases.QUICK) if case.backward or case.way == "step"]


@pytest.mark.parametrize("case", ENOUGH, ids=str)
def test_every_operator_is_verified(case, processes):
    """On every contender that can do it; at least one can, in both dtypes."""
    result = times(case, processes, rounds=1)
    assert set(result["seconds"]) | set(result["skipped"]) == set(processes)
    assert all(seconds[0] > 0 for seconds in result["seconds"].values())
    assert "fused npu" in result["seconds"], result["skipped"]


def test_a_wrong_result_stops(processes, monkeypatch):
    work = OPERATORS["swiglu"](64, 256)
    golden = type(work).golden
    monkeypatch.setattr(type(work), "golden", lambda *a: {n: v * 1.001 for n, v in golden(*a).items()})
    with pytest.raises(Wrong, match=r"fused cpu .* out .* 9\.99e-04"):
        times(cases.Case(work, "float32", False), processes, rounds=1)


def test_a_contender_that_raises_is_reported(processes):
    with pytest.raises(Failed, match="fused cpu: KeyError"):
        processes["fused cpu"].ask("prepare", operator="none", sizes={}, dtype="float32", backward=False)
    assert processes["fused cpu"].ask("release") == {"ok": None}


def test_who_takes_too_long_is_started_anew():
    process = Process(CONTENDERS["fused cpu"], 1, "off", "python3")
    try:
        process.started()
        request = cases.Case(OPERATORS["rms_norm"](4096, 4096), "float32", True).request
        assert process.ask("prepare", timeout=0.0, **request) == {"unavailable": "more than 0 s"}
        assert process.ask("release") == {"ok": None}
    finally:
        process.end()


def test_contenders_take_turns_and_slow_ones_get_fewer():
    turns = []

    def measure(name):
        turns.append(name)
        return 1.0

    seconds = timing.interleaved(measure, "ab", {"a": 3, "b": 1})
    assert "".join(turns) == "abab" + "aa"  # one turn to warm up
    assert seconds == {"a": [1.0] * 3, "b": [1.0]}
    assert timing.rounds_within(0.01, 9) == 9
    assert timing.rounds_within(100.0, 9) == 1


def test_limits_and_floor(tmp_path):
    measured = limits.measure(threads=1, rounds=1, sets_mib=(1, 2))
    assert set(measured) == {"copy", "copy_nontemporal", "update"}
    assert all(rate > 0 for rates in measured.values() for rate in rates.values())
    bandwidth = {
        "copy": {100: 10.0, 10**6: 1e3},
        "copy_nontemporal": {100: 5.0, 10**6: 2e3},
        "update": {100: 1.0},
    }
    known = Limits(bandwidth, {"float32": 1e3})
    swiglu = cases.Case(OPERATORS["swiglu"](10, 10), "float32", False)
    assert known.floor(swiglu) == 1200 / 10  # the set of 100 bytes is the nearer one
    linear = cases.Case(OPERATORS["linear"](1000, 1000, 1000), "float32", False)
    assert known.floor(linear) == 2e9 / 1e3


def test_goals():
    swiglu = cases.Case(OPERATORS["swiglu"](64, 256), "float32", False)
    met = [goal.is_met for goal in cases.goals(swiglu, fused=1.25, floor=1.0, torch=1.2, full=None)]
    assert met == [True, False]
    causal = cases.Case(OPERATORS["attention"](256, 2, 32, "causal"), "bfloat16", True)
    ratios = {goal.text: goal.at_most for goal in cases.goals(causal, 1.0, 1.0, torch=3.0, full=2.0)}
    assert ratios == {"time / torch": 0.5, "time / full mask": 0.55}


def test_fraction_of_a_mask():
    attention = OPERATORS["attention"]
    assert attention(256, 2, 32, "full").computed() == 1
    assert attention(256, 2, 32, "causal").computed() == 10 / 16  # blocks of 64
    assert sum(attention(4096, 2, 32, "documents").lengths) == 4096


def test_arrays_are_the_same_everywhere_and_rounded():
    work = OPERATORS["moe"](8, 4, 4, 4, 2)
    first, second = filled(work, "bfloat16"), filled(work, "bfloat16")
    for name, array in first.items():
        assert np.array_equal(array, second[name])
        if array.dtype == np.float32 and name not in work.keep_float32:
            assert not (array.view(np.uint32) & 0xFFFF).any()


def test_every_size_can_be_made():
    """Each case of the full run has a label, a cost and a request that a worker understands."""
    seen = set()
    for case in cases.cases():
        assert str(case) not in seen
        seen.add(str(case))
        assert case.cost.bytes > 0
        assert json.loads(json.dumps(case.request)) == case.request
        assert dataclasses.asdict(case.work) == case.work.sizes
    with pytest.raises(Unavailable, match="no kernel on the CPU"):
        OPERATORS["moe"](8, 4, 4, 4, 2).paddle({}, "paddle")
