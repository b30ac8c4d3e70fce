"""Paddle's own traces, alone and beside msprof's trees: made by hand, with right totals."""

import gzip
import json
from decimal import Decimal

import pytest
from handmade_profiles import msprof, paddle_trace
from handmade_profiles.step import STEP, check_step, only_rank

from llm_npu.profiling.parts import PREFIX
from llm_npu.profiling.report import summary
from llm_npu.profiling.report.pages import tables


def a_step(**options) -> paddle_trace.Trace:
    trace = paddle_trace.Trace(**options)
    trace.add("ProfileStep#3", "ProfileStep", 0, 60)
    trace.add("DataLoader", "Dataloader", 1, "8.5")
    trace.add("matmul dygraph", "Operator", 12, 3, input_shapes={"x": [[4, 8]]}, callstack="a.py\nb.py")
    trace.memory(5, 1 << 20, 3 << 20)
    trace.memory(30, 2 << 20, 3 << 20)
    trace.memory(31, 9 << 20, 9 << 20, place="Place(cpu)")
    return trace


def test_steps_memory_and_data_loading_come_from_paddle(tmp_path):
    msprof.write(tmp_path / "PROF_1", STEP)
    a_step(offset="0").write(tmp_path)
    rank = only_rank(tmp_path)
    (step,) = rank.steps
    assert (step.name, step.time, step.data_loading) == ("ProfileStep#3", 60_000, 8_500)
    assert rank.window == 60_000 and rank.idle == 20_100
    when, allocated, reserved = rank.memory
    assert when.tolist() == [5_000, 30_000]  # since the step began
    assert (allocated / 2**20).tolist() == [1, 2] and (reserved / 2**20).tolist() == [3, 3]


def test_kernels_from_paddle_alone(tmp_path):
    """``ts`` is cut to microseconds: taken at its word, kernels would overlap."""
    trace = paddle_trace.Trace(offset="0.5")
    for number, (start, duration) in enumerate([("10.2", "0.9"), ("11.1", "0.8"), ("11.9", "0.4")]):
        launched = Decimal(start) - 8
        trace.add("cudaLaunchKernel", "CudaRuntime", launched, "0.1", **{"correlation id": number})
        trace.add("rms_norm", "Kernel", start, duration, **{"correlation id": number})
    trace.write(tmp_path)
    rank = only_rank(tmp_path)
    (operator,) = rank.operators
    assert (operator.name, operator.calls, operator.time) == ("rms_norm", 3, 2_100)
    assert rank.window == 2_100 and rank.idle == 0 and rank.launch_bound == 0


def test_parts_of_a_model_last_to_the_next_mark_or_the_end_of_the_backward_pass(tmp_path):
    trace = paddle_trace.Trace(offset="0")
    marks = {0: "text", 10: "vision tower", 20: "text", 30: "", 42: "text", 50: "vision tower"}
    for time, part in marks.items():
        trace.add(f"{PREFIX}{part}", "UserDefined", time, 0)
    trace.add("Gradient Backward", "Backward", 41, 19)
    launches = [1, 12, 13, 25, 35, 43, 55, 65]  # the one at 35 is between the passes, the last an optimizer's
    for number, launch in enumerate(launches):
        trace.add("cudaLaunchKernel", "CudaRuntime", launch, "0.5", **{"correlation id": number})
        trace.add("rms_norm", "Kernel", launch + 1, number + 1, **{"correlation id": number})
    trace.write(tmp_path)
    parts = {name: (part.calls, part.time) for name, part in only_rank(tmp_path).parts.items()}
    assert parts == {"text": (3, 11_000), "vision tower": (3, 12_000)}
    (table,) = (
        table for table in tables.of(summary.build(tmp_path), 1) if table.rows[-1][0].startswith("rest")
    )
    assert [row[:2] for row in table.rows] == [
        ["text", "3"],
        ["vision tower", "3"],
        ["rest of the step", "2"],
    ]


def test_packed_trace(tmp_path):
    trace = paddle_trace.Trace()
    trace.add("rms_norm", "Kernel", 1, 2)
    (tmp_path / "a_time_b.paddle_trace.json.gz").write_bytes(gzip.compress(trace.text().encode()))
    assert only_rank(tmp_path).window == 2_000


def test_raw_line_ends_in_call_stacks(tmp_path):
    trace = paddle_trace.Trace()
    trace.add("matmul dygraph", "Operator", 0, 1, callstack="one\ntwo")
    trace.add("rms_norm", "Kernel", 1, 2)
    text = trace.text().replace("one\\ntwo", "one\ntwo")
    (tmp_path / "a.paddle_trace.json").write_text(text)
    assert only_rank(tmp_path).window == 2_000


def test_a_trace_without_kernels_says_so(tmp_path):
    a_step().write(tmp_path)
    with pytest.raises(ValueError, match=r"has no kernels"):
        summary.build(tmp_path)


def test_the_newest_trace_of_a_rank_counts(tmp_path):
    msprof.write(tmp_path / "PROF_1", STEP)
    for number, name in enumerate(("a_time_1.paddle_trace.json", "a_time_2.paddle_trace.json")):
        trace = paddle_trace.Trace()
        trace.add(f"ProfileStep#{number}", "ProfileStep", 0, 50)
        trace.write(tmp_path, name)
    report = summary.build(tmp_path)
    assert [step.name for step in report.ranks[0].steps] == ["ProfileStep#1"]
    assert "a_time_1.paddle_trace.json is an older trace" in report.notes[0]


def test_clocks_with_nothing_in_common(tmp_path):
    msprof.write(tmp_path / "PROF_1", STEP)
    a_step(epoch=1_000_000).write(tmp_path)
    report = summary.build(tmp_path)
    (step,) = report.ranks[0].steps
    assert step.time == 60_000 == report.ranks[0].window  # it ends with the last kernel
    assert step.spent["matmul"] == 10_050
    assert "unrelated clocks" in report.notes[0]


def test_merged_traces_are_not_counted_twice(tmp_path):
    """paddle_custom_device.npu.profile writes both sides into one file, besides the PROF_ folder."""
    msprof.write(tmp_path / "PROF_1", STEP)
    merged = [*json.loads(a_step(offset="0").text())["traceEvents"], *msprof.events(STEP)]
    (tmp_path / "trace_view_20240911.json").write_text(json.dumps({"traceEvents": merged}))
    report = summary.build(tmp_path)
    check_step(report.ranks[0])
    assert "trace_view_20240911.json was not read" in report.notes[0]


def test_merged_trace_alone(tmp_path):
    merged = [*json.loads(a_step(offset="0").text())["traceEvents"], *msprof.events(STEP)]
    (tmp_path / "trace_view_20240911.json").write_text(json.dumps({"traceEvents": merged}))
    rank = only_rank(tmp_path)
    assert (rank.works["matmul"].time, rank.communication, rank.hidden) == (10_050, 15_000, 5_250)
    assert [step.name for step in rank.steps] == ["ProfileStep#3"]
