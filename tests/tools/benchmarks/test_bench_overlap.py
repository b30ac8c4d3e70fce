"""python -m benchmarks overlap runs in tiny sizes and verifies; speed is not asserted."""

import pytest

from benchmarks import machine, report
from benchmarks.overlap import experts, jobs, results, ring, transfers
from benchmarks.overlap.cases import Case, link_speed, rows_for

pytestmark = pytest.mark.slow

PROGRAM = ("-m", "benchmarks", "overlap")
TINY = (
    "--quick",
    "--dtype",
    "bfloat16",
    "--width",
    "256",
    "--rounds",
    "1",
    "--ratios",
    "1",
    "--only",
    "all_gather_matmul*",
)


def check_times(records: list[dict], ways: tuple[str, ...]) -> None:
    """Every setting of all_gather_matmul in each of these ways has been measured."""
    times = [record for record in records if record["kind"] == "time"]
    for way in ways:
        names = [record["setting"] for record in times if record["way"] == way]
        assert {"serial", "pipelined:2", "planned", "product", "collective"} <= set(names)
        assert ("mc2" in names) == (way != "backward")
    assert all(record["median"] > 0 for record in times)


def test_two_ranks_verify_and_time_every_setting(tmp_path):
    """One of the jobs of which the script makes its records."""
    ways = ("forward", "backward", "backward, frozen")
    cases = [Case("all_gather_matmul", way, "bfloat16", 128, 256, 256) for way in ways]
    timings = jobs.run({"cases": [case.to_dict() for case in cases], "rounds": 1}, threads=1)
    records = [machine.facts(threads=1) | {"kind": "machine"}]
    for case, timing in zip(cases, timings, strict=True):
        records += results.records(case, 0.0, None, timing, 0.0)
    report.write(records, tmp_path / "new.jsonl")
    check_times(report.read(str(tmp_path / "new.jsonl")), ways)


def test_every_setting_has_its_record(run_python, tmp_path):
    file = tmp_path / "new.jsonl"
    done = run_python(*PROGRAM, *TINY, "--json", file)
    assert done.returncode == 0, done.stderr
    check_times(report.read(str(file)), ("forward", "backward", "backward, frozen"))


@pytest.mark.parametrize(
    ("module", "contenders"),
    [(ring, {"overlapped"}), (experts, {"pipelined:2", "pipelined:4", "pipelined:8", "experts"})],
)
def test_two_ranks_verify_and_time_operators_with_transfers(module, contenders):
    cases = [module.case_of("bfloat16", way, 128) for way in ("forward", "step")]
    timings = jobs.run({"cases": [case.to_dict() for case in cases], "rounds": 1}, threads=1, gbps=0.1)
    for case, timing in zip(cases, timings, strict=True):
        records = transfers.records_of(module, case, 0.3, 0.1, timing)
        names = {record["setting"]: record["median"] for record in records if record["kind"] == "time"}
        assert {"serial", "blocks"} | contenders <= set(names)
        assert min(names.values()) > 0


def test_the_figures_of_ring_attention():
    case = ring.case_of("bfloat16", "step", 128)
    assert ring.sent(case) == [2 * 128 * 2 * 64 * size for size in (2, 2, 4)]
    # Transfers of 25, 25 and 50 ms next to blocks of 50, 62.5 and 62.5 ms.
    assert ring.bound(case, 0.35, 0.1, 0.1) == pytest.approx(0.35)
    assert ring.bound(case, 0.35, 0.1, 0.4) == pytest.approx(0.35 + 0.05 + 0.0375 + 0.1375)
    seconds = {"serial": [0.45], "overlapped": [0.36], "blocks": [0.35], "blocks forward": [0.1]}
    records = transfers.records_of(ring, case, 0.3, 0.1, {"seconds": seconds})
    (hidden,) = [record["hidden"] for record in records if "hidden" in record]
    assert hidden == pytest.approx(0.9)


def test_the_figures_of_experts_over_ranks():
    case = experts.case_of("bfloat16", "step", 128)
    assert experts.sent(case) == [2 * 128 * 512 * 2] * 4
    # Of two chunks, the first exchange, the last computation and the last exchange are not hidden, or both
    # exchanges in parallel with the first and the last half of the computation.
    assert experts.lanes(0.4, 0.1, 2) == pytest.approx(0.05 + 0.4 + 0.05)
    assert experts.lanes(0.1, 0.4, 2) == pytest.approx(0.8)
    # Exchanges of 25 ms, experts of 100 ms forward and 200 ms backward, and 20 ms to sort rows.
    seconds = {"serial": [0.42], "blocks": [0.32], "experts": [0.3], "experts forward": [0.1]}
    seconds |= {"pipelined:2": [0.38], "pipelined:4": [0.36], "pipelined:8": [0.34]}
    measurement = {"seconds": seconds, "choice": "pipelined:4"}
    records = transfers.records_of(experts, case, 0.3, 0.1, measurement)
    hidden = {record["setting"]: record["hidden"] for record in records if "hidden" in record}
    bounds = {2: 0.37, 4: 0.345, 8: 0.3325}
    for chunks, bound in bounds.items():
        name = f"pipelined:{chunks}"
        assert hidden[name] == pytest.approx((0.42 - seconds[name][0]) / (0.42 - bound))
    goals = {record["goal"]: record for record in records if record["kind"] == "goal"}
    assert goals["left of what can be hidden"]["value"] == pytest.approx(1 - max(hidden.values()))
    assert not goals["the planner's choice / the best setting"]["met"]


def test_the_figures_of_a_case():
    case = Case("matmul_all_reduce", "forward", "float32", 1024, 256, 256)
    seconds = {
        "serial": [0.2],
        "pipelined:2": [0.16],
        "planned": [0.2],
        "collective": [0.1],
        "product": [0.1],
    }
    seconds |= {"product:2": [0.1]}
    timing = {"seconds": seconds, "choice": "serial"}
    records = {record.get("setting"): record for record in results.records(case, 1.0, 0.01, timing, 0.01)}
    two = records["pipelined:2"]
    assert (two["gain"], two["ideal"], two["bound"]) == pytest.approx((0.2, 0.15, 0.155))
    assert two["hidden"] == pytest.approx(0.04 / 0.045)
    assert two["exposed"] == pytest.approx(0.06)
    goals = {
        goal["goal"]: goal
        for goal in results.records(case, 1.0, 0.01, timing, 0.01)
        if goal["kind"] == "goal"
    }
    assert not goals["the planner's choice / the best setting"]["met"]
    assert goals["left of what can be hidden"]["value"] == pytest.approx(1 / 9)


def test_links_and_rows_are_made_to_measure():
    case = Case("matmul_reduce_scatter", "forward", "bfloat16", 1000, 256, 512)
    assert case.sent == 1000 * 512 * 2 // 2
    assert link_speed(case.sent, 0.1, 0) is None
    assert link_speed(case.sent, 0.1, 2) == pytest.approx(case.sent / 0.2 / 1e9)
    assert rows_for(0.1, 0.05, 512) == 1024


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "nothing"), "matches none of"),
        (("--ratios", "a"), "accepted: numbers"),
        (("--width", "100"), "multiple of 64"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, run_python):
    done = run_python(*PROGRAM, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
