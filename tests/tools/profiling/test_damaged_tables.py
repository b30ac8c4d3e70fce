"""msprof's tables in every state: what can be read counts, and a note names the rest."""

import json
import os
import time
import tracemalloc

import pytest
from handmade_profiles import msprof, paddle_trace
from handmade_profiles.step import MUL, STEP, check_step, only_rank

from llm_npu.core import program
from llm_npu.profiling.__main__ import main
from llm_npu.profiling.report import summary
from llm_npu.profiling.report.reading import op_summary

SUMMARY, TIMELINE = f"op_summary_{msprof.STAMP}.csv", f"msprof_{msprof.STAMP}.json"
TABLE = msprof.op_summary(STEP)
HEADING, *ROWS = TABLE.splitlines()
FIRST, LAST = "10.050", "15.000"  # the durations of the first and the last task
assert f",{FIRST}," in ROWS[0] and f",{LAST}," in ROWS[2]


def written(folder, table: str | bytes):
    """A profile with only this op_summary; returns its output folder."""
    output = msprof.write(folder / "PROF_1", STEP)
    for name in (TIMELINE, f"op_statistic_{msprof.STAMP}.csv"):
        (output / name).unlink()
    (output / SUMMARY).write_bytes(table if isinstance(table, bytes) else table.encode())
    return output


def durations(report) -> list[int]:
    """The durations of the tasks, in whole microseconds."""
    return sorted(operator.time // 1000 for operator in report.ranks[0].operators)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "table",
    [
        "\ufeff" + TABLE,
        TABLE.replace("\n", "\r\n"),
        TABLE.replace("\n", "\r"),
        TABLE.encode("utf-16"),
        "\n\n" + TABLE,
        TABLE.rstrip("\n"),
        "\n".join([HEADING + ",", *(f"{row},," for row in ROWS)]),
        "".join([HEADING, ",more" * 9, *(f"\n{row}" + "," * 9 for row in ROWS)]),
    ],
    ids=[
        "BOM",
        "CRLF",
        "CR",
        "UTF-16",
        "blank lines",
        "no last line end",
        "commas at the end",
        "more columns",
    ],
)
def test_other_writers(tmp_path, table):
    written(tmp_path, table)
    check_step(only_rank(tmp_path))
    assert summary.build(tmp_path).notes == []


CUT = "rows are incomplete"
SKIPPED = "rows without a start or a duration were skipped"
# The table, the durations that count in microseconds, and the notes.
DAMAGED = {
    "cut in quotes": ("\n".join([HEADING, ROWS[1], ROWS[0][: ROWS[0].index('"') + 5]]), [10, 20], [CUT]),
    "cut in a duration": (TABLE[: TABLE.index(LAST) + 4], [10, 20], [SKIPPED, CUT]),
    "a quote that is not closed": (TABLE.replace('"""4,8;8,2"""', '"""4,8', 1), [10, 15, 20], [CUT]),
    "a quote before the times": (TABLE.replace("dynamic", '"dynamic', 1), [15, 20], [SKIPPED, CUT]),
    "negative": (TABLE.replace(f",{FIRST},", f",-{FIRST},"), [15, 20], [SKIPPED]),
    "not a number": (TABLE.replace(f",{FIRST},", ",NaN,"), [15, 20], [SKIPPED]),
    "infinite": (TABLE.replace(f",{FIRST},", ",inf,"), [15, 20], [SKIPPED]),
    "beyond float64": (TABLE.replace(f",{FIRST},", ",1e400,"), [15, 20], [SKIPPED]),
    "two years": (TABLE.replace(f",{FIRST},", ",63072000000000.0,"), [15, 20], [SKIPPED]),
    "thousands in quotes": (TABLE.replace(f",{FIRST},", ',"1,010.050",'), [15, 20], [SKIPPED]),
    "thousands without quotes": (TABLE.replace(f",{FIRST},", ",1,010.050,"), [15, 20], ["more cells"]),
    "shapes without quotes": (TABLE.replace('"""4,8;8,2"""', "4,8;8,2"), [10, 15, 20], []),
    "other surplus cells": (TABLE.replace("dynamic", "dynamic,3,4", 1), [15, 20], ["more cells"]),
    "NUL": (TABLE.replace("MatMulV2", "Mat\0Mul"), [15, 20], ["lines are binary"]),
    "a line of 5 MiB": (TABLE.replace("MatMulV2", "M" * (5 << 20)), [15, 20], ["longer than 4 MiB"]),
    "a start of 0": (TABLE.replace(msprof.since_1970("0.1"), "0"), [10, 15, 20], ["years apart"]),
    "two columns of starts": (
        "\n".join([f"{HEADING},Task Start Time(us)", *(f"{row},5" for row in ROWS)]),
        [10, 15, 20],
        ["has several columns"],
    ),
    "the heading again": ("\n".join([HEADING, *ROWS, HEADING]), [10, 15, 20], [SKIPPED]),
    "some devices are missing": (TABLE.replace("\n0,", "\nN/A,", 1), [15, 20], ["do not name their device"]),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_can_be_read_counts(tmp_path, damage):
    table, expected, notes = DAMAGED[damage]
    written(tmp_path, table)
    report = summary.build(tmp_path)
    assert durations(report) == expected
    assert len(report.notes) == len(notes)
    assert all(part in note for part, note in zip(notes, report.notes, strict=True)), report.notes


REFUSED = {
    "empty": ("", "has no column"),
    "only a heading": (HEADING + "\n", "contains no device task"),
    "binary": (os.urandom(5000), "has no column"),
    "semicolons": (TABLE.replace(",", ";"), "has no column"),
    "a missing column": (TABLE.replace("Task Duration", "Length"), 'column "Task Duration(us)"'),
    "milliseconds": (TABLE.replace("Task Duration(us)", "Task Duration(ms)"), "in ms and was skipped"),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("damage", REFUSED)
def test_a_table_that_cannot_be_read(tmp_path, damage, capsys):
    table, words = REFUSED[damage]
    written(tmp_path, table)
    assert program.run(main, ["report", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and words in printed.err


def test_other_encodings_keep_names_apart(tmp_path):
    """As replacement characters two names would be one."""
    named = TABLE.replace("MatMulV2", "Matü").replace(",Mul,", ",Matö,").encode("latin-1")
    written(tmp_path, named)
    names = {operator.name for operator in summary.build(tmp_path).ranks[0].operators}
    assert names == {r"Mat\xfc", r"Mat\xf6", "hcom_allReduce_"}


def test_many_columns_take_no_time(tmp_path):
    wide = "".join(f",c{number}" for number in range(200_000))
    written(tmp_path, "\n".join([HEADING + wide, *(row + "," * 200_000 for row in ROWS)]))
    began = time.process_time()
    check_step(only_rank(tmp_path))
    assert time.process_time() - began < 10  # it takes half a second; 60 once


def test_memory_is_that_of_the_columns(tmp_path):
    """Not of the file: most of it are other columns."""
    file = tmp_path / SUMMARY
    row = ROWS[0] + "," + "x" * 3000
    file.write_text("\n".join([f"{HEADING},more", *[row] * 4_000]))
    tracemalloc.start()
    (table,) = op_summary.read([file], []).values()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(table) == 4_000 and peak < 6 << 20 < file.stat().st_size


OTHERS = {
    f"op_statistic_{msprof.STAMP}.csv": "Total Time(us)\n",
    f"memory_record_{msprof.STAMP}.csv": "Device_id,Timestamp(us),Total Allocated(KB),Total Reserved(KB)\n",
    f"npu_mem_{msprof.STAMP}.csv": "Device_id,event,hbm(KB),timestamp(us)\n",
    TIMELINE: '[{"ph": "X", "dur": 5}',
    "a.paddle_trace.json": '{"traceEvents": [{"ph": "X"',
    "machine.json": "{",
}


@pytest.mark.parametrize("state", ["empty", "cut off", "binary", "short rows", "NaN", "deep", "nothing"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_files_spoil_nothing(tmp_path, name, state):
    folder = tmp_path / "rank_0"
    output = written(folder, TABLE)
    file = (output if name.endswith(f"{msprof.STAMP}.csv") or name == TIMELINE else folder) / name
    begin = OTHERS[name]
    content = {
        "empty": b"",
        "cut off": begin.encode()[:-3] + b'"',
        "binary": bytes(range(256)) * 20,
        "short rows": f"{begin}0\n0,x\n0,-1,-1,-1,-1,-1,-1\n".encode(),
        "NaN": f"{begin}0,nan,inf,1e400\n{'9' * 40},{'9' * 40},{'9' * 40},{'9' * 5000}\n".encode(),
        "deep": b"[" * 100_000,
        "nothing": None,
    }[state]
    file.unlink(missing_ok=True)
    file.symlink_to("nowhere") if content is None else file.write_bytes(content)
    report = summary.build(tmp_path)
    check_step(report.ranks[0])
    assert report.notes or (name == "machine.json" and state == "nothing")


def test_what_is_no_file_is_not_opened(tmp_path):
    """A FIFO would make the report wait forever, a device would never end."""
    output = written(tmp_path, TABLE)
    os.mkfifo(tmp_path / "a.paddle_trace.json")
    (output / TIMELINE).symlink_to("/dev/zero")
    (output / f"memory_record_{msprof.STAMP}.csv").mkdir()
    report = summary.build(tmp_path)
    check_step(report.ranks[0])
    assert len(report.notes) == 3 and all("was skipped" in note for note in report.notes)


def test_links_are_followed_once(tmp_path):
    msprof.write(tmp_path / "elsewhere" / "PROF_1", STEP)
    folder = tmp_path / "profile"
    folder.mkdir()
    (folder / "rank_3").symlink_to(tmp_path / "elsewhere")
    (folder / "again").symlink_to(folder)
    (folder / "everything").symlink_to("/")
    (tmp_path / "elsewhere" / "around").symlink_to(folder / "rank_3")
    report = summary.build(folder)
    (rank,) = report.ranks
    check_step(rank)
    assert rank.rank == 3 and report.notes == []


def test_events_that_make_no_sense_are_counted(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    (output / SUMMARY).unlink()
    good = msprof.events(STEP)
    task = next(event for event in good if event["name"] == MUL.call)
    times = [-1, None, True, [], "x", "NaN", "1e400", "9" * 5000]
    bad = [{**task, "dur": value} for value in times] + [{**task, "ts": value} for value in times]
    bad += [{**task, "name": value} for value in ([], {}, None, 5)] + [{**task, "args": "x"}]
    (output / TIMELINE).write_text(json.dumps([*good, *bad]))
    report = summary.build(tmp_path)
    check_step(report.ranks[0])
    (note,) = report.notes
    assert note.startswith(f"{TIMELINE}: {len(bad)} events ") and "skipped" in note


@pytest.mark.sampled
@pytest.mark.parametrize("number", ["99999999999999999999", "9" * 5000])
def test_labels_with_numbers_that_no_card_has(tmp_path, number):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    (output / SUMMARY).unlink()
    text = json.dumps(msprof.events(STEP)).replace("NPU 0", f"NPU {number}")
    (output / TIMELINE).write_text(text)
    check_step(only_rank(tmp_path))


def test_durations_that_add_up_to_centuries(tmp_path, capsys):
    year = "31536000000000.0"
    written(tmp_path, "\n".join([HEADING, *[ROWS[0].replace(FIRST, year)] * 200]))
    assert program.run(main, ["report", str(tmp_path)]) == 2
    assert "more than 146 years" in capsys.readouterr().err


NAMES = [
    "\x1b]0;title\x07",
    "\x1b[31m",
    "<script>alert(1)</script>",
    "a$\\frac{1}{$b$_",
    "|x|`y`",
    "\u202egnp",
]
NAMES += ["\ud800", "a\nAdvice", "矩阵乘", "M" * 5000]


@pytest.mark.slow
def test_names_are_text_on_the_terminal_and_the_page(tmp_path, capsys):
    """No escape sequence reaches a terminal, no markup a page, and no mathematics a plot."""
    folder = tmp_path / "rank_0\x1b[31m<b>"
    events = msprof.events(STEP)
    task = next(event for event in events if event["name"] == MUL.call)
    events += [{**task, "name": name, "args": {**task["args"], "a": 1}} for name in NAMES]
    output = msprof.write(folder / "PROF_1", STEP)
    (output / SUMMARY).unlink()
    (output / TIMELINE).write_text(json.dumps(events))
    trace = paddle_trace.Trace(offset="0")
    for name in NAMES:
        trace.add(f"ProfileStep#{name}", "ProfileStep", 0, 100)
    trace.write(folder)
    (folder / "machine.json").write_text(json.dumps({"host": "\x1b[31m<i>", "address": "$x$"}))
    (folder / "PROF_\x1b[7m").mkdir()
    page = tmp_path / "report.html"
    assert main(["report", str(folder), "--top", "30", "--html", str(page)]) == 0
    for text in (capsys.readouterr().out, page.read_text()):
        assert all(character.isprintable() or character == "\n" for character in text)
        assert r"\x1b]0;title\x07" in text and "矩阵乘" in text and r"\u202egnp" in text
        assert r"a\nAdvice" in text and "M" * 100 not in text
    assert "<script" not in page.read_text() and "<b>" not in page.read_text().partition("<body>")[2].replace(
        "<li><b>", ""
    )


def test_dollars_stay_in_a_plot():
    from llm_npu.profiling.report.pages import plots

    with plots.style():
        picture, axes = plots.figure(1)
        axes.set_title(NAMES[3])
        svg = plots.drawn("", picture).svg.decode()
    assert NAMES[3] in svg
