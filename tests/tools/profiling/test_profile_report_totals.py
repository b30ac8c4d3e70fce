"""The report's totals are those of a naive sum over the raw events, however the tasks overlap."""

import numpy as np
import pytest
from handmade_profiles import msprof, naive, paddle_trace
from handmade_profiles.msprof import Task
from handmade_profiles.some_tasks import some_tasks

from llm_npu.profiling.report import summary
from llm_npu.profiling.report.spans import Spans
from llm_npu.profiling.report.times import nanoseconds, text

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("seed", range(4))
def test_totals_are_the_naive_sums(tmp_path, seed):
    tasks = some_tasks(seed)
    msprof.write(tmp_path / "PROF_1", [task for _, task in tasks])
    (rank,) = summary.build(tmp_path).ranks
    expected = naive.totals(tasks)
    totals = {f"tasks {name}": rank.works[name].time for name in naive.ORDER}
    totals |= {f"alone {name}": rank.works[name].alone for name in naive.ORDER}
    totals |= {"hidden": rank.hidden, "exposed": rank.exposed, "idle": rank.idle, "window": rank.window}
    assert totals == expected
    assert sum(rank.spent().values()) == rank.window
    calls = {name: sum(work == name for work, _ in tasks) for name in naive.ORDER}
    assert {name: rank.works[name].calls for name in naive.ORDER} == calls


@pytest.mark.parametrize("seed", range(2))
def test_operators_are_the_naive_sums(tmp_path, seed):
    tasks = some_tasks(seed)
    msprof.write(tmp_path / "PROF_1", [task for _, task in tasks])
    report = summary.build(tmp_path)
    for operator in report.operators:
        same = [task.duration for work, task in tasks if (task.kind, work) == (operator.name, operator.work)]
        assert (operator.calls, operator.time) == (len(same), 1000 * sum(same))
        assert operator.longest == 1000 * max(same)
    assert sum(operator.calls for operator in report.operators) == len(tasks)


def test_steps_divide_their_time_among_classes(tmp_path):
    tasks = some_tasks(seed=7)
    msprof.write(tmp_path / "PROF_1", [task for _, task in tasks])
    trace = paddle_trace.Trace(offset="0")
    borders = [(0, 130), (130, 250), (250, 430)]
    for number, (start, end) in enumerate(borders):
        trace.add(f"ProfileStep#{number}", "ProfileStep", start, end - start)
    trace.write(tmp_path)
    (rank,) = summary.build(tmp_path).ranks
    assert [step.name for step in rank.steps] == ["ProfileStep#0", "ProfileStep#1", "ProfileStep#2"]
    for step, (start, end) in zip(rank.steps, borders, strict=True):
        assert step.time == 1000 * (end - start) == sum(step.spent.values())
        for name, place in (
            ("matmul", "matmul"),
            ("communication", "communication, exposed"),
            ("idle", "idle"),
        ):
            moments = [claims(tasks, moment) == name for moment in range(start, end)]
            assert step.spent[place] == 1000 * sum(moments)


def claims(tasks, moment: int) -> str:
    """The class that accounts for a moment."""
    active = {work for work, task in tasks if task.start <= moment < task.start + task.duration}
    return next((name for name in naive.ORDER if name in active), "idle")


def test_launch_bound_is_the_wait_for_the_launch(tmp_path):
    tasks = [
        Task("Mul", "AI_VECTOR_CORE", 0, 10, launch=-5),
        Task("Mul", "AI_VECTOR_CORE", 30, 10, launch=25),  # the device had nothing to do from 10 to 25
        Task("Mul", "AI_VECTOR_CORE", 60, 10, launch=1),  # launched long before: it waited for something else
        Task("Mul", "AI_VECTOR_CORE", 70, 10, launch=69),  # no gap
    ]
    msprof.write(tmp_path / "PROF_1", tasks)
    (rank,) = summary.build(tmp_path).ranks
    assert rank.idle == 40_000
    assert rank.launch_bound == 15_000


def test_launch_bound_is_unknown_without_launches(tmp_path):
    msprof.write(tmp_path / "PROF_1", [Task("Mul", "AI_VECTOR_CORE", 0, 10)])
    (rank,) = summary.build(tmp_path).ranks
    assert rank.launch_bound is None


@pytest.mark.parametrize("seed", range(5))
def test_spans(seed):
    random_ = np.random.default_rng(seed)
    sets, spans = [], []
    for _ in range(2):
        starts = random_.integers(0, 80, 12)
        ends = starts + random_.integers(0, 9, 12)
        sets.append({t for start, end in zip(starts, ends, strict=True) for t in range(start, end)})
        spans.append(Spans(starts, ends))
    (a, b), (first, second) = sets, spans
    assert first.total == len(a) and first.union(second).total == len(a | b)
    assert first.shared(second) == second.shared(first) == len(a & b)
    starts, ends = first.gaps(-3, 100)
    assert {t for s, e in zip(starts, ends, strict=True) for t in range(s, e)} == set(range(-3, 100)) - a
    assert first.covered([10, 20], [30, 20]).tolist() == [len(a & set(range(10, 30))), 0]


def test_empty_spans():
    nothing = Spans([], [])
    assert nothing.total == 0 and nothing.covered([1], [9]).tolist() == [0]
    assert nothing.union(Spans([3], [5])).total == 2
    starts, ends = nothing.gaps(2, 4)
    assert (starts.tolist(), ends.tolist()) == ([2], [4])


@pytest.mark.parametrize(
    ("written", "exact"),
    [
        ("1699529623106750.123", 1699529623106750123),
        ("1699529623106750.1\t", 1699529623106750100),
        ("0.5", 500),
        (" 12 ", 12_000),
        (12, 12_000),
        ("-0.25", -250),
        ("1e3", 1_000_000),
    ],
)
def test_nanoseconds(written, exact):
    assert nanoseconds(written) == exact


@pytest.mark.parametrize("written", ["", "N/A", "nan", "1.2.3"])
def test_no_time(written):
    with pytest.raises(ValueError, match="not a number of microseconds"):
        nanoseconds(written)


def test_times_in_words():
    assert [text(time) for time in (0, 999, 1_000, 12_345, 1_234_567, -2_000_000, 61_000_000_000)] == [
        "0 ns", "999 ns", "1.00 us", "12.3 us", "1.23 ms", "-2.00 ms", "61.0 s",
    ]  # fmt: skip
