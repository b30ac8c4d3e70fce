"""Whatever is peculiar about a profile, its totals are the naive sums over the tasks of which it was made.

Each peculiarity is a way to write the same random tasks of all classes, on several streams, many at a time.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from handmade_profiles import msprof, naive, paddle_trace
from handmade_profiles.msprof import Task
from handmade_profiles.some_tasks import some_tasks

from llm_npu.profiling.report import summary

pytestmark = pytest.mark.sampled

TIMELINE, SUMMARY = f"msprof_{msprof.STAMP}.json", f"op_summary_{msprof.STAMP}.csv"
Tasks = list[tuple[str, Task]]


def totals_of(rank) -> dict[str, int]:
    """A rank's totals, named as ``naive.totals`` names them."""
    totals = {f"tasks {name}": rank.works[name].time for name in naive.ORDER}
    totals |= {f"alone {name}": rank.works[name].alone for name in naive.ORDER}
    return totals | {"hidden": rank.hidden, "exposed": rank.exposed, "idle": rank.idle, "window": rank.window}


def plain(tasks: Tasks) -> list[Task]:
    return [task for _, task in tasks]


def rewritten(file: Path, change: Callable[[list[dict]], list[dict]]) -> None:
    """The timeline in ``file`` with its events changed."""
    file.write_text(json.dumps(change(json.loads(file.read_text()))))


def as_it_comes(folder: Path, tasks: Tasks) -> None:
    msprof.write(folder / "PROF_1", plain(tasks))


def timeline_alone(folder: Path, tasks: Tasks) -> Path:
    output = msprof.write(folder / "PROF_1", plain(tasks))
    (output / SUMMARY).unlink()
    return output / TIMELINE


def times_as_numbers(folder: Path, tasks: Tasks) -> None:
    """Of sixteen digits and three decimals: as doubles, neighbours fall together."""
    file = timeline_alone(folder, tasks)
    text = file.read_text()
    for task in plain(tasks):
        text = text.replace(f'"{msprof.since_1970(task.start)}"', msprof.since_1970(task.start))
    file.write_text(text)


def times_with_more_digits(folder: Path, tasks: Tasks) -> None:
    rewritten(
        timeline_alone(folder, tasks),
        lambda events: [
            {**event, "ts": f"{event['ts']}000\t"} if "ts" in event else event for event in events
        ],
    )


def events_out_of_order(folder: Path, tasks: Tasks) -> None:
    rewritten(timeline_alone(folder, tasks), lambda events: events[::-1])


def names_of_processes_last(folder: Path, tasks: Tasks) -> None:
    rewritten(
        timeline_alone(folder, tasks), lambda events: sorted(events, key=lambda event: event["ph"] == "M")
    )


def no_labels(folder: Path, tasks: Tasks) -> None:
    """The processes of the timeline do not say which device they are; op_summary does."""
    as_it_comes(folder, tasks)
    rewritten(
        next(folder.rglob(TIMELINE)),
        lambda events: [event for event in events if event["name"] != "process_labels"],
    )


def derived_rows(folder: Path, tasks: Tasks) -> None:
    """Rows that MindStudio makes of others, events of the host, and counters."""

    def more(events: list[dict]) -> list[dict]:
        names = {900: "Overlap Analysis", 901: "AI Core Freq", 902: "Python"}
        for pid, name in names.items():
            events.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}})
            row = {"ph": "X", "pid": pid, "tid": 0, "ts": msprof.since_1970(0), "args": {}}
            events += [{**row, "name": "Computing", "dur": 300.5}, {**row, "name": "inside", "dur": 20}]
        events.append({"name": "HBM", "ph": "C", "pid": 901, "ts": msprof.since_1970(1), "args": {"a": 1}})
        return events

    rewritten(timeline_alone(folder, tasks), more)


def slices_with_times_of_their_own(folder: Path, tasks: Tasks) -> None:
    """Each slice bears the second in which it was written."""
    output = msprof.write(folder / "PROF_1", plain(tasks))
    for name in (TIMELINE, SUMMARY):
        (output / name).unlink()
    for number in range(3):
        part = plain(tasks)[number::3]
        stamp = f"slice_{number}_2024091112000{number}"
        (output / f"op_summary_{stamp}.csv").write_text(msprof.op_summary(part))
        (output / f"msprof_{stamp}.json").write_text(json.dumps(msprof.events(part)))


def slices_exported_twice(folder: Path, tasks: Tasks) -> None:
    output = msprof.write(folder / "PROF_1", plain(tasks))
    for name in (TIMELINE, SUMMARY):
        (output / name).unlink()
    for time in (1, 2):
        for number in range(2):
            part = plain(tasks)[number::2]
            stamp = f"slice_{number}_2024091112000{time}"
            (output / f"op_summary_{stamp}.csv").write_text(msprof.op_summary(part))
            (output / f"msprof_{stamp}.json").write_text(json.dumps(msprof.events(part)))


def waits_between(folder: Path, tasks: Tasks) -> None:
    """Streams wait for events of each other for longer than they work."""
    waits = [
        Task(kind, kind, start, 200, stream=7) for start, kind in ((0, "EVENT_WAIT"), (90, "NOTIFY_WAIT"))
    ]
    timeline_alone(folder, [*tasks, *(("", wait) for wait in waits)])


def two_cards_in_one_export(folder: Path, tasks: Tasks) -> None:
    """The second card's tasks and arrows, of other streams, at the same times."""
    others = [replace(task, device=1, stream=8, name="other") for _, task in some_tasks(seed=9)]
    msprof.write(folder / "PROF_1", [*plain(tasks), *others])


def both_sides_in_one_file(folder: Path, tasks: Tasks) -> None:
    """Paddle's trace and msprof's in one, and Paddle's has the kernels, too, as on the virtual NPU."""
    trace = paddle_trace.Trace(offset="0")
    for task in plain(tasks):
        trace.add(task.kind, "Kernel", task.start, task.duration)
    merged = [*json.loads(trace.text())["traceEvents"], *msprof.events(plain(tasks))]
    folder.mkdir(exist_ok=True)
    (folder / "trace_view_20240911.json").write_text(json.dumps({"traceEvents": merged}))


def many_captures(folder: Path, tasks: Tasks) -> None:
    for number, part in enumerate((tasks[:9], tasks[5:20], tasks)):
        msprof.write(folder / f"PROF_00000{number}_2024091112000{number}123_AB", plain(part))


PECULIAR = [
    as_it_comes,
    timeline_alone,
    times_as_numbers,
    times_with_more_digits,
    events_out_of_order,
    names_of_processes_last,
    no_labels,
    derived_rows,
    slices_with_times_of_their_own,
    slices_exported_twice,
    waits_between,
    two_cards_in_one_export,
    both_sides_in_one_file,
    many_captures,
]


@pytest.mark.parametrize("peculiar", PECULIAR, ids=lambda peculiar: peculiar.__name__)
def test_totals_are_the_naive_sums(tmp_path, peculiar):
    tasks = some_tasks(seed=11)
    peculiar(tmp_path, tasks)
    rank = summary.build(tmp_path).ranks[0]
    assert totals_of(rank) == naive.totals(tasks)
    assert sum(rank.spent().values()) == rank.window
    assert rank.tasks == len(tasks)


def at(start, duration=10, stream=2, device=0, launch=None) -> Task:
    return Task("Mul", "AI_VECTOR_CORE", start, duration, stream=stream, device=device, launch=launch)


def test_numbers_of_arrows_that_differ_beyond_a_doubles_digits(tmp_path):
    """They are made of times since 1970: as doubles one launch would be that of all kernels."""
    file = timeline_alone(tmp_path, [("", at(20 * i, launch=20 * i - 4)) for i in range(9)])

    def numbered(events):
        return [{**event, "id": 2**60 + int(event["id"])} if "id" in event else event for event in events]

    rewritten(file, numbered)
    (rank,) = summary.build(tmp_path).ranks
    assert (rank.idle, rank.launch_bound) == (80_000, 8 * 6_000)


def test_another_cards_launches_are_not_this_ones(tmp_path):
    """Its kernel begins within the microsecond in which an arrow may end."""
    tasks = [at(0, launch=-5), at(30), at("30.5", device=1, launch=25), at(0, device=1, launch=-5)]
    msprof.write(tmp_path / "PROF_1", tasks)
    first, second = summary.build(tmp_path).ranks
    assert first.idle == 20_000 and first.launch_bound == 0
    assert second.idle == 20_500 and second.launch_bound == 15_000


@pytest.mark.parametrize("turn", [1, -1])
def test_of_tasks_that_begin_together_the_first_launch_ends_the_wait(tmp_path, turn):
    trace = paddle_trace.Trace(offset="0")
    for number, (start, launch) in enumerate([(0, -5), *[(30, 12), (30, 25)][::turn]]):
        trace.add("cudaLaunchKernel", "CudaRuntime", launch, 1, **{"correlation id": number})
        trace.add("rms_norm", "Kernel", start, 10, **{"correlation id": number})
    trace.write(tmp_path)
    (rank,) = summary.build(tmp_path).ranks
    assert (rank.idle, rank.launch_bound) == (20_000, 2_000)


def test_ranges_inside_ranges_count_once(tmp_path):
    """A task that holds others of its stream and of another, to any depth, and touching ones."""
    tasks = [at(0, 100), at(10, 50), at(20, 10, stream=3), at(60, 40), at(100, 5), at(120, 0), at(130, 1)]
    msprof.write(tmp_path / "PROF_1", tasks)
    (rank,) = summary.build(tmp_path).ranks
    assert (rank.works["vector"].alone, rank.works["vector"].time) == (106_000, 206_000)
    assert (rank.window, rank.idle) == (131_000, 25_000)


def test_steps_and_waits_for_data_that_overlap(tmp_path):
    """Steps inside a step, as of two profilers, and loaders inside loaders: each counts what is in it."""
    msprof.write(tmp_path / "PROF_1", [at(10), at(50, 20)])
    trace = paddle_trace.Trace(offset="0")
    for name, start, duration in (("outer", 0, 100), ("inner", 40, 40)):
        trace.add(f"ProfileStep#{name}", "ProfileStep", start, duration)
    for start, duration in ((30, 30), (35, 10), (55, 20)):
        trace.add("DataLoader", "Dataloader", start, duration)
    trace.write(tmp_path)
    (rank,) = summary.build(tmp_path).ranks
    assert rank.data_loading == 45_000
    spent = {
        step.name: (step.time, step.spent["vector"], step.spent["idle"], step.data_loading)
        for step in rank.steps
    }
    assert spent == {
        "ProfileStep#outer": (100_000, 30_000, 70_000, 45_000),
        "ProfileStep#inner": (40_000, 20_000, 20_000, 35_000),
    }
