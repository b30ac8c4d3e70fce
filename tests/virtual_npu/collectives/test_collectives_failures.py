"""Ranks with mismatched calls, and lost ranks: the remaining ranks get an error in time, with the reason."""

import os
import re
from pathlib import Path

import pytest
import ranks
from collectives.failures import LOSSES, MISMATCHES

pytestmark = pytest.mark.sampled

PROGRAM = Path(__file__).parent / "collectives" / "failures.py"
TIMEOUT = 2  # seconds; the promise is about the setting, whatever its value
# Seconds: more than a busy machine adds, and far below VIRTUAL_NPU_COLLECTIVE_LIMIT, where every wait ends.
# That a rank does not wait a second time shows in the error, which is that of the first time.
SOON = 120


def run(folder, case, may_die=(), timeout=TIMEOUT, **environment):
    """With the watch of first uses, as by default; tests/conftest.py switches it off."""
    environment = {"VIRTUAL_NPU_AICPU_WARNINGS": "1"} | environment
    environment["VIRTUAL_NPU_COLLECTIVE_TIMEOUT"] = str(timeout)
    return ranks.run(PROGRAM, 3, folder, case, may_die=may_die, **environment)


@pytest.fixture(scope="module")
def mismatches(tmp_path_factory):
    return run(tmp_path_factory.mktemp("mismatches"), "mismatches")


def lines_of(function) -> set[int]:
    return {line for _, _, line in function.__code__.co_lines() if line is not None}


def calls_in(error: str) -> dict[int, tuple[str, int]]:
    """The call of each rank, and its line of the program, according to the error."""
    calls = re.findall(r"rank (\d) \([^)]*\) called (.*?) at (\S+?):(\d+)[;. ]", error)
    assert {Path(file).name for _, _, file, _ in calls} == {PROGRAM.name}
    return {int(rank): (call, int(line)) for rank, call, _, line in calls}


WORDS = {
    "kind": ("all_reduce(sum) of 10 float32 (call 1)", "broadcast from rank 0 of 10 float32 (call 1)"),
    "dtype": ("all_reduce(sum) of 10 float32 (call 1)", "all_reduce(sum) of 10 int32 (call 1)"),
    "count": ("all_reduce(sum) of 11 float32 (call 1)", "all_reduce(sum) of 12 float32 (call 1)"),
    "reduction": ("all_reduce(max) of 10 float32 (call 1)", "all_reduce(min) of 10 float32 (call 1)"),
    "root": ("broadcast from rank 0 of 10 float32 (call 1)", "broadcast from rank 1 of 10 float32 (call 1)"),
    "order": ("all_reduce(sum) of 3 float32 (call 1)", "all_reduce(sum) of 4 float32 (call 1)"),
    "large": ("all_reduce(sum) of 3000000 float32 (call 1)", "all_gather of 4 float32 (call 1)"),
    "compute stream": ("all_reduce(sum) of 11 float32 (call 1)", "all_reduce(sum) of 12 float32 (call 1)"),
    "asynchronous": ("all_reduce(sum) of 11 float32 (call 1)", "all_reduce(sum) of 12 float32 (call 1)"),
}


def check_mismatch(reports, name):
    errors = {report[name]["error"] for report in reports}
    assert len(errors) == 1  # every rank raises the same
    for report in reports:
        assert report[name]["seconds"] < SOON
        assert report[name]["again"]["error"] in errors  # the group is of no more use ...
        assert report["sum"] == 30  # ... and all others are as they were
    return errors.pop()


@pytest.mark.slow
@pytest.mark.parametrize("name", WORDS)
def test_mismatch_names_both_calls_and_lines(mismatches, name):
    calls = calls_in(check_mismatch(mismatches, name))
    assert set(calls) == {0, 1, 2}
    for rank, (call, line) in calls.items():
        assert call == WORDS[name][min(rank, 1)]
        assert line in lines_of(MISMATCHES[name][min(rank, 1)])


def test_parts_of_all_to_all_that_do_not_fit(mismatches):
    error = check_mismatch(mismatches, "parts")
    assert re.search(
        r"rank 0 .* sends 8 bytes to rank \d .* expects 4 in all_to_all of .*failures.py:\d+", error
    )


def test_ends_of_a_transfer_that_do_not_fit(mismatches):
    calls = calls_in(check_mismatch(mismatches, "transfer"))
    assert calls[0][0] == "send to rank 1 of 5 float32 (transfer 1)"
    assert calls[1][0] == "recv from rank 0 of 5 float64 (transfer 1)"


REASONS = {"stopped": "is stopped", "ended": "(has exited|has left the group)"}
QUICK = ("killed", "stopped")


def shared_memory() -> set[str]:
    """The files of our groups; other programs may create and remove files there."""
    return {name for name in os.listdir("/dev/shm") if "virtual_npu" in name}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in LOSSES]
)
def test_a_lost_rank_is_named_on_all_others(tmp_path, case):
    before = shared_memory()
    first, _, last = run(tmp_path, case, may_die=(1,))
    for report in (first, last):
        error = report["error"]
        assert re.search(
            r"rank [02] .* waits in .* at \S+failures.py:\d+ for rank 1 \(process \d+\), ", error
        )
        assert re.search(REASONS.get(case, "has exited"), error)
        assert re.search(
            r"last collective in this group was all_reduce\(sum\) of 10 float32 .*failures.py:\d+", error
        )
        assert report["seconds"] < SOON
        assert report["again"]["error"] == error
        assert "rank 1" in report["other group"]["error"]  # the rank is missing there, too
        assert report["other group"]["seconds"] < SOON
    assert shared_memory() <= before


@pytest.mark.slow
@pytest.mark.parametrize("case", ["missing", pytest.param("circle", marks=pytest.mark.slow)])
def test_ranks_that_wait_for_each_other(tmp_path, case):
    for report in run(tmp_path, case):
        assert report["error"].count(" waits in ") >= 2 and "deadlock" in report["error"]
        assert report["error"].count("failures.py:") >= 2
        assert report["seconds"] < SOON


GROUP_ORDER = Path(__file__).parent / "collectives" / "group_order.py"
WATCHED = {"VIRTUAL_NPU_COLLECTIVE_TIMEOUT": "20", "VIRTUAL_NPU_AICPU_WARNINGS": "1"}  # ranks start apart


@pytest.mark.slow
@pytest.mark.parametrize(("case", "processes"), [("two groups", 2), ("ring", 3)])
def test_groups_first_used_in_different_order_are_named_on_all_ranks(tmp_path, case, processes):
    reports = ranks.run(GROUP_ORDER, processes, tmp_path, case, **WATCHED)
    (line,) = (n for n, text in enumerate(GROUP_ORDER.read_text().splitlines(), 1) if "all_reduce" in text)
    for report in reports:
        waits = re.findall(r"rank (\d) waits for .*? at \S+group_order.py:(\d+) ", report["error"])
        assert sorted(waits) == [(str(rank), str(line)) for rank in range(processes)]
        assert "deadlock" in report["error"] and report["seconds"] < SOON


@pytest.mark.slow
def test_groups_first_used_in_the_same_order_are_not_reported(tmp_path):
    for report in ranks.run(GROUP_ORDER, 3, tmp_path, "same order", **WATCHED):
        assert report["error"] == "" and report["total"] == 4 * 3 * 3


@pytest.mark.slow
def test_sends_wait_for_each_other_as_on_a_card_only_where_that_is_asked_for(tmp_path):
    assert [report["error"] for report in run(tmp_path, "sends")] == ["", "", ""]
    for report in run(tmp_path, "sends", VIRTUAL_NPU_SYNC_SENDS="1"):
        assert report["error"].count(" waits in send to rank ") >= 2 and "deadlock" in report["error"]


@pytest.mark.slow
def test_a_slow_rank_is_waited_for(tmp_path):
    reports = run(tmp_path, "slow", timeout=1)
    assert [report["error"] for report in reports] == ["", "", ""]
    assert reports[0]["seconds"] >= 1 and reports[0]["computed"] < 0.2 * reports[0]["seconds"]
    log = (tmp_path / "0.log").read_text()
    assert re.search(r"waits in all_reduce\(sum\) .* for rank 1 .* keeps waiting", log)


@pytest.mark.slow
def test_a_rank_that_does_not_come_is_given_up_at_the_limit(tmp_path):
    for report in run(tmp_path, "too slow", timeout=1, VIRTUAL_NPU_COLLECTIVE_LIMIT="1.5"):
        assert re.search(
            r"waits in .* for rank 1 .*VIRTUAL_NPU_COLLECTIVE_LIMIT sets the limit", report["error"]
        )


@pytest.mark.slow
def test_a_program_that_waits_in_one_of_its_threads_is_not_stuck(tmp_path):
    assert [report["error"] for report in run(tmp_path, "two threads", timeout=1)] == ["", "", ""]


@pytest.mark.slow
def test_static_programs_raise_too(tmp_path):
    for report in run(tmp_path, "static"):
        for size in (10, 11, 12):
            # The executor's threads know no line of the program; the thread that calls it knows where from.
            place = r"(a static program|\S+failures.py:\d+)"
            assert re.search(rf"all_reduce\(sum\) of {size} float32 \(call \d+\) at {place}", report["error"])
        assert re.search(r'failures.py", line \d+, in double', report["error"])  # Paddle says it


@pytest.mark.slow
def test_a_rank_can_end_while_its_collective_waits(tmp_path):
    first, _, last = run(tmp_path, "left in flight")
    for report in (first, last):
        assert "for rank 1" in report["error"] and report["seconds"] < SOON


@pytest.mark.slow
def test_a_rank_that_is_not_heard_of_is_waited_for(tmp_path):
    reports = run(tmp_path, "no files")
    assert [report["error"] for report in reports] == ["", "", ""]
    assert reports[0]["seconds"] >= 1


@pytest.mark.slow
def test_a_rank_that_is_started_again_touches_no_other_file(tmp_path):
    first, second, _ = run(tmp_path, "again", timeout=60)
    assert re.search(r"The group virtual_npu_\S+ cannot be joined: .* has closed it", second["error"])
    assert first["sizes"] == 0


@pytest.mark.slow
def test_an_error_that_nobody_catches_ends_the_program_as_any_other(tmp_path):
    with pytest.raises(AssertionError, match=r"rank \d ended with 1\b") as caught:
        run(tmp_path, "uncaught")
    assert "RuntimeError" in str(caught.value) and "different calls" in str(caught.value)
