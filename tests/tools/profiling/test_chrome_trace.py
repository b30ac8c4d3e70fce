"""The joined timeline is drawn as it is meant: a strict judge of traces, and msprof's peculiarities."""

import json
from decimal import Decimal

import pytest
from handmade_profiles import msprof
from handmade_profiles.msprof import Task
from profiled import chrome

from llm_npu.profiling import timeline

NAME = {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "first"}}


def piece(start, length, name="piece", row=1) -> dict:
    return {"name": name, "ph": "X", "pid": 1, "tid": row, "ts": start, "dur": length}


def arrow(kind, when, row=1, number=7, end="e") -> dict:
    more = {"bp": end} if kind == "f" else {}
    return {"cat": "flow", "ph": kind, "id": number, "pid": 1, "tid": row, "ts": when, **more}


NESTED = [NAME, piece(0, 10), piece(2, 3), piece(2, 3), piece(5, 5), piece(20, 4, row=2)]
BEGIN, END = arrow("s", 2), arrow("f", 20, 2)
NUMBER = "1726000000123456.789"
WRONG = [
    (
        "piece begins inside outer and ends behind it, in row (1, 1)",
        [NAME, piece(0, 10, "outer"), piece(8, 3)],
    ),
    ("ts of piece is -1", [NAME, piece(-1, 10)]),
    ("dur of piece is -1", [NAME, piece(1, -1)]),
    ("ts of piece, 1.005 us, is 1004 ns", [NAME, piece(Decimal("1.005"), 1)]),
    (f"ts of piece, {NUMBER} us, is 1726000000123456768 ns", [NAME, piece(Decimal(NUMBER), 1)]),
    ("process 1 has no name", [piece(0, 1)]),
    ("process 1 has the names ['first', 'second']", [NAME, {**NAME, "args": {"name": "second"}}]),
    ("the arrow flow 7 has its end s in no slice", [*NESTED, arrow("s", 12), END]),
    ("the arrow flow 7 has its end f in no slice", [*NESTED, BEGIN, arrow("f", 24, 2)]),
    ("the arrow flow 7 has its end f in no slice", [*NESTED[:-1], BEGIN, END, NESTED[-1]]),
    ("the arrow flow 7 has two ends f", [*NESTED, BEGIN, END, END]),
    ("the arrow flow 7 has one end only", [*NESTED, BEGIN]),
    ("the arrow flow 7 goes back in time", [*NESTED, arrow("s", 21, 2), arrow("f", 3)]),
    (
        "the arrow flow 7 ends at the slice that follows, not at the one around it",
        [*NESTED, BEGIN, arrow("f", 20, 2, end="s")],
    ),
    (
        f"the arrow flow {2**53} has a number that a viewer rounds",
        [*NESTED, arrow("s", 2, number=2**53), arrow("f", 20, 2, number=2**53)],
    ),
]


@pytest.mark.sampled
@pytest.mark.parametrize(("sentence", "events"), WRONG)
def test_the_judge_names_what_is_wrong(sentence, events):
    assert set(chrome.faults(events)) == {sentence}


@pytest.mark.sampled
@pytest.mark.parametrize("times", [str, int, lambda time: Decimal(time) + Decimal("0.25")])
def test_the_judge_accepts_what_is_right(times):
    events = [{**event, **({"ts": times(event["ts"])} if "ts" in event else {})} for event in NESTED]
    assert chrome.faults([*events, arrow("s", times(2)), arrow("f", times(20), 2)]) == []


def kernels_of_two_streams() -> list[Task]:
    """Kernels of a few hundred nanoseconds, each of which begins when the one before it ends."""
    tasks = []
    for stream in (2, 3):
        end = Decimal(0)
        for number in range(400):
            length = Decimal(101 + 37 * (number % 23)) / 1000
            launch = Decimal(len(tasks) - 1000) / 2  # a launch takes half a microsecond
            tasks.append(Task("Mul", "AI_VECTOR_CORE", end, length, stream=stream, launch=launch))
            end += length
    return tasks


def written(tmp_path, events: list[dict]) -> list[dict]:
    """The joined trace of what msprof has written."""
    (tmp_path / "msprof_1.json").write_text(json.dumps(events))
    timeline.write(tmp_path / "trace.json", {}, [tmp_path / "msprof_1.json"], [], 0, "made by hand")
    return chrome.read(tmp_path / "trace.json")


def test_times_since_1970_in_strings(tmp_path):
    """As doubles, more than a fifth of the kernels are inside others."""
    raw = msprof.events(kernels_of_two_streams())
    rounded = [{**event, "ts": float(event["ts"])} if "ts" in event else event for event in raw]
    lost = [fault for fault in chrome.faults(rounded) if "begins inside" in fault]
    assert len(lost) > 160
    assert chrome.faults(written(tmp_path, raw)) == []


def test_lengths_survive_to_the_nanosecond(tmp_path):
    tasks = kernels_of_two_streams()
    kernels = [event for event in written(tmp_path, msprof.events(tasks)) if event["name"] == tasks[0].call]
    assert [chrome.viewed(event["dur"]) for event in kernels] == [int(1000 * task.duration) for task in tasks]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [int, str])
def test_numbers_of_arrows_that_are_times_since_1970(tmp_path, kind):
    """As doubles they are alike, and one launch seems to point at many kernels."""
    raw = msprof.events(kernels_of_two_streams())
    for event in raw:
        if event["ph"] in ("s", "f"):
            event["id"] = kind(1_726_000_000_123_456_000 + int(event["id"]))
    events = written(tmp_path, raw)
    assert chrome.faults(events) == []
    assert len({event["id"] for event in events if event["ph"] == "s"}) == 800


def test_an_arrow_that_is_written_before_its_slices(tmp_path):
    raw = msprof.events(kernels_of_two_streams()[:1])
    raw.sort(key=lambda event: event["ph"] not in ("s", "f"))
    assert "has its end s in no slice" in " ".join(chrome.faults(raw))
    assert chrome.faults(written(tmp_path, raw)) == []


def test_damaged_files_of_msprof_cost_their_own_events(tmp_path):
    """As after a full disk: the steps have been trained, and the rest of the timeline is worth having."""
    tasks = kernels_of_two_streams()[:3]
    raw = msprof.events(tasks)
    whole = json.dumps(raw)
    odd = [
        5,
        {"ph": "s", "name": "no id", "ts": 1},
        {**raw[-1], "ts": "soon"},
        {"ph": "X", "name": "a", "args": "b"},
    ]
    cases = {
        "cut off": (whole[: whole.index('"name"', len(whole) // 2)], "is damaged"),
        "odd events": (json.dumps([*odd, *raw]), "is damaged"),
        "binary": ("\0" * 99, "is not a Chrome trace"),
        "nothing": (None, "No such file"),
    }
    for name, (content, words) in cases.items():
        file = tmp_path / f"msprof_{name}.json"
        if content is not None:
            file.write_text(content)
        notes = timeline.write(tmp_path / "trace.json", {}, [file], [], 0, "made by hand")
        assert len(notes) == 1 and words in notes[0], (name, notes)
        kernels = [event for event in chrome.read(tmp_path / "trace.json") if event["name"] == tasks[0].call]
        assert len(kernels) == (3 if name == "odd events" else len(kernels))


@pytest.mark.parametrize("table", ["", "Op Name\n", 'Op Name,Task Start Time(us),Input Shapes\n"a', "\0\0"])
def test_damaged_tables_of_msprof_cost_their_shapes(tmp_path, table):
    (tmp_path / "op_summary_1.csv").write_text(table)
    (tmp_path / "msprof_1.json").write_text(json.dumps(msprof.events(kernels_of_two_streams()[:3])))
    files = [tmp_path / "msprof_1.json"], [tmp_path / "op_summary_1.csv"]
    notes = timeline.write(tmp_path / "trace.json", {}, *files, 0, "made by hand")
    assert notes and all("op_summary_1.csv" in note for note in notes)
    assert chrome.faults(chrome.read(tmp_path / "trace.json")) == []
