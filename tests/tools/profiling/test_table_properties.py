"""Properties of the reader of op_summary: any cell, any cut, any bytes; and its memory and time."""

import csv
import io
import random
import time

import peak_memory
import pytest
from handmade_profiles import msprof
from handmade_profiles.some_tasks import some_tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_npu.profiling.report import compare, summary
from llm_npu.profiling.report.pages import plain
from llm_npu.profiling.report.reading import op_summary

TASKS = [task for _, task in some_tasks(seed=3, count=12) if task.engine != "MEMCPY_ASYNC"]
TABLE = msprof.op_summary(TASKS)
CELLS = list(csv.reader(io.StringIO(TABLE)))
HEADING = CELLS[0]
START, DURATION = HEADING.index("Task Start Time(us)"), HEADING.index("Task Duration(us)")
TEXTS = [HEADING.index(name) for name in ("Stream ID", "Op Name", "OP Type", "Task Type", "Input Data Types")]
ODD = st.sampled_from(
    ["", "N/A", "NaN", "-inf", "1e400", "-5", "1,5", "1,234.5", "0x10", "9" * 30, "9" * 5000]
)
ODD |= st.text().filter(lambda text: not any(character.isdecimal() for character in text))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("PROF_1") / f"op_summary_{msprof.STAMP}.csv"


PIECES = [b'"', b",", b"\n", b"\x1b[2J", "\u202e".encode()]


def written(rows: list[list[str]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode(errors="replace")


def read(file, content: bytes) -> tuple[list[int], list[str]]:
    """The durations that count, in nanoseconds, and the notes."""
    notes = []
    file.write_bytes(content)
    tables = op_summary.read([file], notes)
    return sorted(int(time) for table in tables.values() for time in table["duration"]), notes


def durations(tasks) -> list[int]:
    return sorted(1000 * int(task.duration) for task in tasks)


def one_line(text: str) -> bool:
    return len(text.splitlines()) < 2 and not set(text) & set("\n\r\0")


@settings(max_examples=30)
@given(st.integers(0, len(TASKS) - 1), st.sampled_from([START, DURATION]), ODD.filter(one_line))
def test_a_time_that_is_none_costs_its_row_and_a_note(file, row, column, odd):
    rows = [list(cells) for cells in CELLS]
    rows[row + 1][column] = odd
    tasks, notes = read(file, written(rows))
    assert tasks == durations(TASKS[:row] + TASKS[row + 1 :])
    (note,) = notes
    assert ": 1 rows " in note


@settings(max_examples=30)
@given(st.integers(0, len(TASKS) - 1), st.sampled_from(TEXTS), st.text().filter(one_line))
def test_any_text_is_text(file, row, column, text):
    rows = [list(cells) for cells in CELLS]
    rows[row + 1][column] = text
    tasks, notes = read(file, written(rows))
    expected = [task for number, task in enumerate(TASKS) if number != row or "EVENT" not in text.upper()]
    assert tasks == durations(expected) and notes == []


@settings(max_examples=30)
@given(st.integers(0, len(TABLE) - 1))
def test_a_cut_costs_at_most_the_last_row(file, length):
    """Its numbers are whole, or it is left out; both with a note unless it ends where a row may end."""
    content = TABLE[:length]
    whole = content.count("\n") - 1
    tasks, notes = read(file, content.encode())
    if whole < 0:
        assert tasks == [] or "\n".join(content.splitlines()) == TABLE.splitlines()[0]
        return
    rest = content.rpartition("\n")[2]
    cells = next(csv.reader([rest]), [])
    assert tasks in (durations(TASKS[:whole]), durations(TASKS[: whole + 1]))
    at_an_end = not rest or (len(cells) == len(HEADING) and rest.count('"') % 2 == 0)
    assert bool(notes) == (not at_an_end)


@settings(max_examples=25)
@given(st.data())
def test_any_bytes_are_read_or_refused(file, data):
    """The report has only printable text, and nothing but ValueError ends it."""
    content = bytearray(TABLE.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(begin, min(begin + 300, len(content))))
        content[begin:end] = data.draw(
            st.binary(max_size=20) | st.sampled_from([b'"', b",", b"\n", b"\x1b[2J"])
        )
    file.write_bytes(bytes(content))
    try:
        text = plain.write(summary.build(file.parent))
    except ValueError as error:
        text = str(error)
    assert all(character.isprintable() or character == "\n" for character in text)


ENGINES = [("Mul", "AI_VECTOR_CORE"), ("hcom_allReduce_", "HCCL"), ("Cast", "AI_CPU"), ("", "N/A")]
ENGINES += [("EVENT_WAIT", "EVENT_WAIT"), ("MEMCPY_ASYNC", "MEMCPY_ASYNC"), ("SoftmaxV2", "AI_VECTOR_CORE")]
TASK = st.builds(
    lambda kind, start, duration, device: msprof.Task(*kind, start, duration, device=device),
    st.sampled_from(ENGINES),
    st.sampled_from([0, 0, 1, 5]),
    st.sampled_from([0, 0, 1, 3]),
    st.sampled_from([0, 1]),
)


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(st.lists(TASK, min_size=1, max_size=3), min_size=1, max_size=3), st.booleans())
def test_reports_on_few_tasks(tmp_path_factory, ranks, timeline_only):
    """Without durations, with waits only, on some devices: totals that may be 0 are divisors."""
    folder = tmp_path_factory.mktemp("profile")
    for rank, tasks in enumerate(ranks):
        output = msprof.write(folder / f"rank_{rank}" / "PROF_1", tasks)
        if timeline_only:
            (output / f"op_summary_{msprof.STAMP}.csv").unlink()
    try:
        report = summary.build(folder)
    except ValueError as error:
        assert "contains no device task" in str(error)
        return
    assert all(sum(rank.spent().values()) == rank.window for rank in report.ranks)
    assert plain.write(report, compare.compare(report, report))


SIZE = 1 << 20
ROW = TABLE.splitlines()[1]
HOSTILE = {
    "commas": lambda: b"," * SIZE,
    "line ends": lambda: b"\n" * (SIZE // 2),
    "quotes": lambda: b'"' * SIZE,
    "open quotes": lambda: b'0,"x\n' * (SIZE // 40),
    "zeros": lambda: bytes(SIZE),
    "noise": lambda: random.Random(1).randbytes(SIZE),
    "short rows": lambda: b"0\n" * (SIZE // 40),
    "long rows": lambda: b",".join([b"0"] * (SIZE // 2)),
    "names that differ": lambda: "\n".join(
        ROW.replace(TASKS[0].call, f"n{number}") for number in range(SIZE // 256)
    ).encode(),
    "long numbers": lambda: b"\n".join([ROW.replace(".", "9" * 4000).encode()] * (SIZE // 9000)),
    "long texts": lambda: b"\n".join([ROW.replace(TASKS[0].call, "n" * 50_000).encode()] * 20),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_memory_and_time_of_any_file(file, kind):
    """Within 32 MiB for a MiB, and 10 seconds on a machine that is busy; an eighth of that is usual."""
    content = TABLE.splitlines()[0].encode() + b"\n" + HOSTILE[kind]()
    began = time.process_time()
    assert peak_memory.grown_by(lambda: read(file, content)) < 32 << 20
    assert time.process_time() - began < 10
