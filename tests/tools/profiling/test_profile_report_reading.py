"""msprof's trees as they really come: made by hand with every peculiarity, and right totals all the same."""

import csv
import json
from decimal import Decimal

import numpy as np
import pytest
from handmade_profiles import msprof
from handmade_profiles.msprof import Task
from handmade_profiles.step import MATMUL, MUL, STEP, check_step, only_rank

from llm_npu.profiling.report import summary
from llm_npu.profiling.report.reading import chrome_trace

pytestmark = pytest.mark.sampled


def test_tables_and_timeline_of_one_export_are_not_counted_twice(tmp_path):
    msprof.write(tmp_path / "PROF_1", STEP)
    check_step(only_rank(tmp_path))
    assert summary.build(tmp_path).notes == []


def test_the_exported_folder_itself_can_be_given(tmp_path):
    check_step(only_rank(msprof.write(tmp_path / "PROF_1", STEP)))
    check_step(only_rank(tmp_path / "PROF_1"))


@pytest.mark.parametrize("shape", ["list", "object"])
@pytest.mark.parametrize("times", ["strings", "numbers"])
def test_timeline_alone(tmp_path, shape, times):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    (output / f"op_summary_{msprof.STAMP}.csv").unlink()
    events = msprof.events(STEP)
    text = json.dumps(events if shape == "list" else {"displayTimeUnit": "ms", "traceEvents": events})
    if times == "numbers":
        for task in STEP:
            written = f'"{msprof.since_1970(task.start)}"'
            assert written in text
            text = text.replace(written, written.strip('"'))
    (output / f"msprof_{msprof.STAMP}.json").write_text(text)
    check_step(only_rank(tmp_path))


def test_many_short_kernels_since_1970_neither_overlap_nor_leave_gaps(tmp_path):
    tasks = [Task("Mul", "AI_VECTOR_CORE", Decimal(i) / 10, "0.1") for i in range(500)]
    output = msprof.write(tmp_path / "PROF_1", tasks)
    rounded = [float(msprof.since_1970(task.start)) for task in tasks]
    assert len(set(rounded)) < 250  # as doubles, neighbours would fall together
    for _ in range(2):
        rank = only_rank(tmp_path)
        assert rank.window == 50_000 == rank.works["vector"].alone and rank.idle == 0
        (output / f"op_summary_{msprof.STAMP}.csv").unlink(missing_ok=True)  # then from the timeline


def test_kernels_that_overlap_in_one_stream_count_once(tmp_path):
    tasks = [
        Task("Mul", "AI_VECTOR_CORE", 0, 10),
        Task("Add", "AI_VECTOR_CORE", 5, 3),
        Task("Sub", "AI_CORE", 8, 4),
    ]
    msprof.write(tmp_path / "PROF_1", tasks)
    rank = only_rank(tmp_path)
    assert rank.works["vector"].time == 17_000
    assert rank.works["vector"].alone == rank.window == 12_000


def test_several_devices_in_one_export(tmp_path):
    others = [Task("MatMulV2", "AI_CORE", 100, 7, device=1), Task("Mul", "AI_VECTOR_CORE", 110, 1, device=1)]
    output = msprof.write(tmp_path / "PROF_1", [*STEP, *others])
    for _ in range(2):
        first, second = summary.build(tmp_path).ranks
        assert (first.rank, second.rank) == (0, 1)
        check_step(first)
        assert (second.window, second.works["matmul"].time, second.idle) == (11_000, 7_000, 3_000)
        (output / f"op_summary_{msprof.STAMP}.csv").unlink(missing_ok=True)  # then from the timeline


def test_ranks_from_folders_although_each_process_sees_device_0(tmp_path):
    msprof.write(tmp_path / "rank_0" / "PROF_000001_20240911120000123_AA", STEP)
    msprof.write(tmp_path / "rank_1" / "PROF_000001_20240911120000123_BB", STEP[:2])
    first, second = summary.build(tmp_path).ranks
    check_step(first)
    assert (second.rank, second.window) == (1, 30_150)


def test_a_capture_that_was_not_exported_is_named(tmp_path):
    msprof.write(tmp_path / "PROF_1", STEP)
    (tmp_path / "PROF_2" / "device_1" / "data").mkdir(parents=True)
    report = summary.build(tmp_path)
    check_step(report.ranks[0])
    (note,) = report.notes
    assert "PROF_2 is not exported" in note and "msprof --export=on --output=" in note


def test_only_captures_that_were_not_exported(tmp_path):
    (tmp_path / "PROF_2" / "device_1" / "data").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"msprof --export=on --output=.*PROF_2"):
        summary.build(tmp_path)


def test_of_several_exports_the_newest_counts(tmp_path):
    msprof.write(tmp_path / "PROF_1", [*STEP, MATMUL], stamp="20240911110000")
    msprof.write(tmp_path / "PROF_1", STEP, stamp="20240911120000")
    check_step(only_rank(tmp_path))
    assert "exported 2 times" in summary.build(tmp_path).notes[0]


def test_of_several_captures_of_a_device_the_newest_counts(tmp_path):
    msprof.write(tmp_path / "PROF_000001_20240911110000123_AB", [MATMUL])
    msprof.write(tmp_path / "PROF_000002_20240911120000123_AA", STEP)
    report = summary.build(tmp_path)
    check_step(report.ranks[0])
    assert "PROF_000001_20240911110000123_AB is an older capture" in report.notes[0]


def test_slices_belong_together(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    for table in ("op_summary", "msprof"):
        (whole,) = output.glob(f"{table}_*")
        whole.unlink()
    for number, task in enumerate(STEP):
        stamp = f"slice_{number}_{msprof.STAMP}"
        (output / f"op_summary_{stamp}.csv").write_text(msprof.op_summary([task]))
        (output / f"msprof_{stamp}.json").write_text(json.dumps(msprof.events([task])))
    check_step(only_rank(tmp_path))
    for path in output.glob("op_summary_*"):
        path.unlink()
    check_step(only_rank(tmp_path))


def test_folders_of_cann_before_8(tmp_path):
    device = tmp_path / "PROF_1" / "device_0"
    (device / "summary").mkdir(parents=True)
    (device / "timeline").mkdir()
    nanoseconds = msprof.op_summary(
        STEP,
        **{"Device_id": "", "Task Start Time(us)": "Task Start Time", "Task Duration(us)": "Task Duration"},
    )
    rows = list(csv.reader(nanoseconds.splitlines()))
    column = rows[0].index("Task Start Time")
    for row in rows[1:]:
        row[column] = str(int(Decimal(row[column].strip()) * 1000))
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    (device / "summary" / "op_summary_0_1.csv").write_text("\n".join(lines) + "\n")
    (device / "timeline" / "msprof_0_1.json").write_text(json.dumps(msprof.events(STEP)))
    check_step(only_rank(tmp_path))


def test_types_and_engines_that_were_not_collected(tmp_path):
    """As at --task-time=l0: the names alone tell what ran."""
    output = msprof.write(tmp_path / "PROF_1", STEP)
    table = output / f"op_summary_{msprof.STAMP}.csv"
    rows = list(csv.reader(table.read_text().splitlines()))
    for row in rows[1:]:
        for column in ("OP Type", "Task Type"):
            row[rows[0].index(column)] = "N/A"
    table.write_text("\n".join(",".join(f'"{cell}"' for cell in row) for row in rows) + "\n")
    rank = only_rank(tmp_path)
    check_step(rank)
    assert [operator.name for operator in rank.operators] == ["Mul", "hcom_allReduce", "MatMulV2"]


def test_columns_and_engines_of_newer_releases(tmp_path):
    newer = [MATMUL, MUL, Task("hcom_allReduce_", "COMMUNICATION", 25, 15)]
    output = msprof.write(tmp_path / "PROF_1", newer)
    table = msprof.op_summary(newer, **{"Block Dim": "Block Num", "OP Type": "Op Type"})
    (output / f"op_summary_{msprof.STAMP}.csv").write_text("\ufeff" + table)
    check_step(only_rank(tmp_path))


def test_collectives_only_in_the_timeline(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    (output / f"op_summary_{msprof.STAMP}.csv").write_text(msprof.op_summary(STEP[:2]))
    (output / f"op_statistic_{msprof.STAMP}.csv").write_text(msprof.op_statistic(STEP[:2]))
    rank = only_rank(tmp_path)
    check_step(rank)
    assert rank.works["communication"].calls == 1  # its transfers are not collectives
    assert summary.build(tmp_path).notes == []


def test_copies_only_in_the_timeline(tmp_path):
    msprof.write(tmp_path / "PROF_1", [*STEP, Task("MEMCPY_ASYNC", "MEMCPY_ASYNC", 50, 4)])
    rank = only_rank(tmp_path)
    assert (rank.works["copy"].calls, rank.works["copy"].time, rank.idle) == (1, 4_000, 10_000)


def test_waiting_for_an_event_is_no_work(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", [*STEP, Task("EVENT_WAIT", "EVENT_WAIT", 40, 50)])
    (output / f"op_summary_{msprof.STAMP}.csv").unlink()
    check_step(only_rank(tmp_path))


def test_rows_without_times_are_left_out_and_counted(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    table = output / f"op_summary_{msprof.STAMP}.csv"
    lines = table.read_text().splitlines()
    broken = lines[1].replace(msprof.since_1970(MATMUL.start), "N/A")
    table.write_text("\n".join([*lines, broken]) + "\n")
    report = summary.build(tmp_path)
    check_step(report.ranks[0])
    (note,) = report.notes
    assert note.startswith(f"{table.name}: 1 rows ") and "skipped" in note


def test_sums_that_do_not_fit_are_reported(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    (output / f"op_statistic_{msprof.STAMP}.csv").write_text(msprof.op_statistic([*STEP, MATMUL, MATMUL]))
    (note,) = summary.build(tmp_path).notes
    assert all(key in note for key in ("op_statistic", "0.065 ms", "op_summary", "0.030 ms"))


def test_a_table_with_a_heading_only_leaves_the_timeline(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    (output / f"op_summary_{msprof.STAMP}.csv").write_text("")
    report = summary.build(tmp_path)
    check_step(report.ranks[0])
    assert "has no column" in report.notes[0]


@pytest.mark.parametrize("half", ["of an event", "of nothing"])
def test_a_timeline_that_was_cut_off(tmp_path, half):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    (output / f"op_summary_{msprof.STAMP}.csv").unlink()
    timeline = output / f"msprof_{msprof.STAMP}.json"
    text = json.dumps([*msprof.events(STEP), {"name": "the last one"}])
    timeline.write_text(text[:-10] if half == "of an event" else text[:1])
    if half == "of nothing":
        with pytest.raises(ValueError, match="contains no device task"):
            summary.build(tmp_path)
        return
    report = summary.build(tmp_path)
    check_step(report.ranks[0])
    assert "ends in the middle of an event" in report.notes[0] and "killed" in report.notes[0]


@pytest.mark.parametrize(("text", "what"), [("", "empty"), ('{"no": "trace"}', "not a Chrome trace")])
def test_a_timeline_that_is_none_leaves_the_table(tmp_path, text, what):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    (output / f"msprof_{msprof.STAMP}.json").write_text(text)
    report = summary.build(tmp_path)
    check_step(report.ranks[0])
    assert f"msprof_{msprof.STAMP}.json is {what}" in report.notes[0] and "skipped" in report.notes[0]


def test_events_longer_than_what_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(chrome_trace, "CHUNK", 256)
    output = msprof.write(tmp_path / "PROF_1", STEP)
    (output / f"op_summary_{msprof.STAMP}.csv").unlink()
    check_step(only_rank(tmp_path))


def test_a_table_that_was_cut_off(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    table = output / f"op_summary_{msprof.STAMP}.csv"
    last = msprof.op_summary([MATMUL]).splitlines()[1]
    table.write_text(table.read_text() + last[: last.index(".") + 2])
    report = summary.build(tmp_path)
    check_step(report.ranks[0])
    assert "1 rows" in report.notes[0]


@pytest.mark.parametrize("content", ["nothing", "no folder", "other files"])
def test_no_profile(tmp_path, content):
    folder = tmp_path / "profile"
    if content != "no folder":
        folder.mkdir()
    if content == "other files":
        (folder / "loss.json").write_text("{}")
    with pytest.raises(
        ValueError, match="is not a folder" if content == "no folder" else "contains no readable profile"
    ):
        summary.build(folder)


def test_memory_record(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    heading = "Device_id,Component,Timestamp(us),Total Allocated(KB),Total Reserved(KB),Device\n"
    rows = [
        (0, "GE", 3, 10, 20),
        (0, "PTA", 5, "100.5", 300),
        (0, "PTA", 1, 50, 300),
        (1, "PTA", 2, 999, 999),
    ]
    lines = [
        f"{d},{name},{msprof.since_1970(t)}\t,{used},{held},NPU:{d}\n" for d, name, t, used, held in rows
    ]
    (output / f"memory_record_{msprof.STAMP}.csv").write_text(heading + "".join(lines))
    when, allocated, reserved = only_rank(tmp_path).memory
    assert when.tolist() == [900, 4_900]
    assert allocated.tolist() == [50 * 1024, 100 * 1024 + 512] and reserved.tolist() == [300 * 1024] * 2


def test_npu_mem_knows_what_is_reserved_only(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", STEP)
    heading = "Device_id,event,ddr(KB),hbm(KB),memory(KB),timestamp(us)\n"
    lines = [f"0,{event},0,{size},{size},{msprof.since_1970(t)}\n" for event, size, t in
             [("Device", 9000, 1), ("App", 64, 2), ("App", 32, 3)]]  # fmt: skip
    (output / f"npu_mem_{msprof.STAMP}.csv").write_text(heading + "".join(lines))
    _, allocated, reserved = only_rank(tmp_path).memory
    assert reserved.tolist() == [64 * 1024, 32 * 1024] and not np.any(allocated)
