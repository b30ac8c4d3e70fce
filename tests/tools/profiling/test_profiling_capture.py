"""Profiles of the virtual NPU: Paddle's profiler, msprof's tables and the joined timeline."""

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest
import ranks
from places import ROOT
from profiled import chrome
from profiled.files import arrows, nanoseconds, output, processes, span, table, timeline

import virtual_npu
from llm_npu import profiling
from llm_npu.profiling import folders, msprof

pytestmark = pytest.mark.sampled

PROGRAMS = Path(__file__).parent / "profiled"
TYPES = {"aicpu": {"AI_CPU"}, "host": {"HOST_CPU"}, "npu": {"AI_CORE", "AI_VECTOR_CORE"}}


@pytest.fixture(scope="module")
def one_rank(run_python, tmp_path_factory):
    """The folder of one process that recorded two steps of four, and what it says has run in these."""
    folder = tmp_path_factory.mktemp("one_rank") / "with space; and more"
    done = run_python("-m", "virtual_npu", PROGRAMS / "one_rank.py", folder)
    assert done.returncode == 0, done.stderr
    return folder / "rank_0", json.loads(done.stdout)["ran"]


def test_every_kernel_is_recorded_once(one_rank):
    folder, ran = one_rank
    counted, types = Counter(), {}
    for row in table(folder, "op_summary"):
        counted[row["OP Type"]] += 1
        types.setdefault(row["OP Type"], set()).add(row["Task Type"])
    expected = Counter()
    for name, _, _, calls, _ in ran:
        expected[name] += calls
    assert counted == expected
    for name, _, placement, *_ in ran:
        assert types[name] & TYPES[placement], (name, placement, types[name])
    assert types["matmul"] == {"AI_CORE"} and types["lgamma"] == {"HOST_CPU"}
    assert types["add"] == {"AI_CPU", "AI_VECTOR_CORE"}  # the addition of doubles, and that of the losses


def test_statistic_sums_the_summary(one_rank):
    folder, _ = one_rank
    total, count = Counter(), Counter()
    for row in table(folder, "op_summary"):
        key = row["OP Type"], row["Task Type"]
        total[key] += nanoseconds(row["Task Duration(us)"])
        count[key] += 1
    rows = table(folder, "op_statistic")
    assert {(row["OP Type"], row["Core Type"]): int(row["Count"]) for row in rows} == count
    assert {(row["OP Type"], row["Core Type"]): nanoseconds(row["Total Time(us)"]) for row in rows} == total
    assert sum(float(row["Ratio(%)"]) for row in rows) == pytest.approx(100, abs=0.1)


def test_shapes_dtypes_and_call_sites(one_rank):
    folder, _ = one_rank
    rows = [row for row in table(folder, "op_summary") if row["OP Type"] == "matmul"]
    assert len(rows) == 2
    for row in rows:
        assert row["Input Shapes"] == '"16,64;64,32"' and row["Output Shapes"] == '"16,32"'
        assert row["Input Data Types"] == "FLOAT;FLOAT" and row["Output Data Types"] == "FLOAT"
        assert re.search(r"one_rank\.py:\d+$", row["Call Site"])
    (source,) = {row["Call Site"] for row in rows}
    line = (PROGRAMS / "one_rank.py").read_text().splitlines()[int(source.rpartition(":")[2]) - 1]
    assert "layer(x)" in line


def test_wait_times_are_gaps_of_a_stream(one_rank):
    folder, _ = one_rank
    ends = {}
    for row in table(folder, "op_summary"):
        start = nanoseconds(row["Task Start Time(us)"])
        gap = start - ends.get(row["Stream ID"], start)
        assert nanoseconds(row["Task Wait Time(us)"]) == gap >= 0
        ends[row["Stream ID"]] = start + nanoseconds(row["Task Duration(us)"])


def test_says_that_it_is_no_card(one_rank):
    folder, _ = one_rank
    about = json.loads((output(folder).parent / "info.json").read_text())
    assert about["device"] == "virtual NPU" and about["is_card"] is False
    labels = [event["args"]["labels"] for event in timeline(folder) if event["name"] == "process_labels"]
    assert any("NPU 0: virtual" in label for label in labels)
    assert "virtual NPU" in json.loads((folder / "trace.json").read_text())["otherData"]["device"]


def test_memory(one_rank):
    folder, _ = one_rank
    rows = table(folder, "memory_record")
    allocated = [float(row["Total Allocated(KB)"]) for row in rows]
    reserved = [float(row["Total Reserved(KB)"]) for row in rows]
    assert rows and all(0 < a <= r for a, r in zip(allocated, reserved, strict=True))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "C"}
    assert "APP/HBM" in names and any(name.startswith("memory Place(npu") for name in names)


def test_arrows_join_launches_and_kernels_of_msprof(one_rank):
    folder, ran = one_rank
    events = timeline(folder)
    assert all(isinstance(event["ts"], str) for event in events if "ts" in event)
    assert chrome.faults(events, chrome.written) == []
    names = processes(events)
    kernels = {
        (event["pid"], event["tid"], nanoseconds(event["ts"])): event
        for event in events
        if event["ph"] == "X" and names[event["pid"]] == "Ascend Hardware"
    }
    joined = arrows(events, "HostToDevice")
    assert len(joined) == len(kernels) >= sum(calls for _, _, _, calls, _ in ran)
    for departure, arrival in joined.values():
        assert names[departure["pid"]] == "CANN"
        assert nanoseconds(departure["ts"]) <= nanoseconds(arrival["ts"])
        assert (arrival["pid"], arrival["tid"], nanoseconds(arrival["ts"])) in kernels


def test_the_joined_timeline_is_on_one_clock(one_rank):
    folder, _ = one_rank
    trace = json.loads((folder / "trace.json").read_text())
    events = trace["traceEvents"]
    assert all(isinstance(event["ts"], (int, float)) for event in events if "ts" in event)
    assert min(event["ts"] for event in events if "ts" in event) == 0
    assert chrome.faults(chrome.read(folder / "trace.json")) == []
    assert len(arrows(events, "HostToDevice")) == len(arrows(timeline(folder), "HostToDevice"))
    names = processes(events)
    steps = sorted(span(event) for event in events if event["name"].startswith("ProfileStep"))
    assert len(steps) == 2
    operators = [span(event) for event in events if event["name"].startswith("matmul") and "cat" in event]
    matmuls = [
        span(event)
        for event in events
        if event["ph"] == "X" and event["name"] == "matmul" and names[event["pid"]] == "Ascend Hardware"
    ]
    assert len(matmuls) == 2
    for start, end in matmuls:
        assert any(first <= start and end <= last for first, last in steps)
        assert any(first <= start and end <= last for first, last in operators)
    shapes = [event["args"].get("Input Shapes") for event in events if event["name"] == "matmul"]
    assert shapes == ["16,64;64,32"] * 2


def test_paddles_own_trace_and_summary_have_the_kernels(one_rank):
    folder, _ = one_rank
    events = json.loads((folder / "host.paddle_trace.json").read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "Kernel"]
    assert any(event["name"].startswith("matmul") for event in kernels)
    assert any("[AI_CPU]" in event["name"] for event in kernels)
    assert arrows(events, "async")
    summary = (folder / "summary.txt").read_text()
    assert "Kernel Summary" in summary and re.search(r"lgamma \[HOST_CPU\]\s+2\b", summary)


@pytest.mark.slow
def test_two_ranks_record_the_same_collectives(tmp_path):
    reports = ranks.run(PROGRAMS / "two_ranks.py", 2, tmp_path / "ranks", tmp_path / "profile")
    assert [report["folder"] for report in reports] == [str(tmp_path / f"profile/rank_{i}") for i in range(2)]
    calls = []
    for rank in range(2):
        folder = tmp_path / f"profile/rank_{rank}"
        rows = [row for row in table(folder, "op_summary") if row["Task Type"] == "HCCL"]
        assert {row["Stream ID"] for row in rows} == {"N/A"}
        assert [row["OP Type"] for row in rows].count("hcom_allReduce_") == 4
        assert [row["OP Type"] for row in rows].count("hcom_allGather_") == 2
        calls.append([row["Op Name"] for row in rows])
        events = timeline(folder)
        assert chrome.faults(events, chrome.written) == []
        assert chrome.faults(chrome.read(folder / "trace.json")) == []
        names = processes(events)
        collectives = [event for event in events if event["ph"] == "X" and names[event["pid"]] == "HCCL"]
        assert len(collectives) == 6 and {event["args"]["ranks"] for event in collectives} == {2}
        assert len({event["tid"] for event in collectives}) == 2  # the stream that computes, and another
        large = [event for event in collectives if event["args"]["count"] == 256 * 256]
        assert len(large) == 2 and {event["args"]["data_type"] for event in large} == {"float32"}
        assert len(arrows(events, "HostToDevice")) == sum(event["ph"] == "X" for event in events) // 2
    assert calls[0] == calls[1]  # the same group and numbers: this is how ranks are compared


@pytest.mark.slow
def test_the_program_of_the_document(run_program, tmp_path):
    text = (ROOT / "docs/profiling.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    done = run_program(program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = table(tmp_path / "profile/rank_0", "op_summary")
    assert [row["OP Type"] for row in rows] == ["matmul"] * 3


@pytest.mark.slow
def test_nothing_is_written_unless_asked(run_program, tmp_path):
    done = run_program(
        """
        import paddle
        paddle.set_device("npu:0")
        paddle.matmul(paddle.ones([4, 4]), paddle.ones([4, 4])).sum().item()
        """,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.slow
def test_paddles_profiler_alone(run_program, tmp_path):
    """A program that knows nothing of this project gets the tree where paddle-custom-npu would put it."""
    done = run_program(
        """
        import paddle
        from paddle import profiler
        paddle.set_device("npu:0")
        targets = [profiler.ProfilerTarget.CPU, profiler.ProfilerTarget.CUSTOM_DEVICE]
        with profiler.Profiler(targets=targets, on_trace_ready=lambda p: None) as p:
            paddle.matmul(paddle.ones([4, 4]), paddle.ones([4, 4])).sum().item()
        p.summary()
        """,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"matmul\s+1\b", done.stdout)
    rows = table(tmp_path / "ascend_profiling", "op_summary")
    assert [row["OP Type"] for row in rows].count("matmul") == 1


@pytest.mark.slow
def test_a_folder_that_cannot_be_written(run_program, tmp_path):
    (tmp_path / "file").write_text("")
    done = run_program(
        """
        import paddle
        from paddle import profiler
        paddle.set_device("npu:0")
        targets = [profiler.ProfilerTarget.CUSTOM_DEVICE]
        with profiler.Profiler(targets=targets, on_trace_ready=lambda p: None):
            paddle.ones([4]).sum()
        """,
        FLAGS_npu_profiling_dir=str(tmp_path / "file"),
    )
    assert done.returncode != 0
    assert "FLAGS_npu_profiling_dir" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"active": 0}, "1 or more active"), ({"active": 1, "warmup": -1}, "0 or more of the others")],
)
def test_bad_numbers(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        profiling.Capture(tmp_path, **arguments)


@pytest.fixture
def clean_environment(monkeypatch):
    for name in folders.VARIABLES:
        monkeypatch.setenv(name, "")


def test_one_profiler_at_a_time(tmp_path, on_npu, clean_environment):
    with profiling.Capture(tmp_path / "a", warmup=0, active=1) as first:
        with pytest.raises(ValueError, match="one profiler at a time"):
            profiling.Capture(tmp_path / "b", active=1).start()
        first.step()
    with profiling.Capture(tmp_path / "c", warmup=0, active=1) as second:
        second.step()
    assert first.done and second.done


def test_another_device(tmp_path, on_cpu, clean_environment):
    with pytest.raises(ValueError, match=r"runs on cpu.*set_device"):
        profiling.Capture(tmp_path, active=1).start()


def test_a_folder_with_a_profile(tmp_path, on_npu, clean_environment):
    (tmp_path / "rank_0/PROF_000001_20260101000000000_ABCDEFGH").mkdir(parents=True)
    with pytest.raises(ValueError, match="already contains a profile"):
        profiling.Capture(tmp_path, active=1).start()


def test_a_capture_that_ends_too_early(tmp_path, on_npu, clean_environment):
    with (
        pytest.raises(ValueError, match="ended after 1 steps"),
        profiling.Capture(tmp_path, warmup=2, active=1) as capture,
    ):
        capture.step()
    assert list((tmp_path / "rank_0").iterdir()) == []


def test_a_capture_that_ends_inside_the_window(tmp_path, on_npu, clean_environment):
    import paddle

    with profiling.Capture(tmp_path, warmup=0, active=5) as capture:
        paddle.ones([4]).sum()
        capture.step()
    assert capture.done
    assert any(row["OP Type"] == "sum" for row in table(capture.folder, "op_summary"))


def test_both_variables_name_the_folder_of_the_rank(tmp_path, monkeypatch, clean_environment):
    monkeypatch.setenv("PADDLE_TRAINER_ID", "3")
    own = profiling.prepare(tmp_path / "a")
    assert own == tmp_path / "a/rank_3" and folders.is_prepared(tmp_path / "a")
    assert {os.environ[name] for name in ("FLAGS_npu_profiling_dir", "PROFILER_OUTPUT_DIR")} == {str(own)}


@pytest.fixture
def msprof_says(tmp_path, monkeypatch):
    """Puts an msprof on PATH that notes its arguments and runs the given shell lines."""

    def install(lines: str) -> Path:
        tool, noted = tmp_path / "bin/msprof", tmp_path / "arguments"
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{noted}"\n{lines}\n')
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
        return noted

    return install


def test_msprof_gets_its_arguments_as_they_are(tmp_path, msprof_says):
    profile = tmp_path / "PROF_1; touch stray $(id)"
    noted = msprof_says(
        'folder="${2#--output=}/mindstudio_profiler_output"\n'
        'mkdir -p "$folder" && echo "[]" > "$folder/msprof_1.json"'
    )
    assert msprof.export(profile) == profile / "mindstudio_profiler_output"
    assert noted.read_text().splitlines() == ["--export=on", f"--output={profile}"]
    assert not (tmp_path / "stray").exists() and not Path("stray").exists()


def test_msprof_fails(tmp_path, msprof_says):
    msprof_says("echo 'no data in the folder'; exit 1")
    with pytest.raises(RuntimeError, match="no data in the folder"):
        msprof.export(tmp_path / "PROF_1")


def test_msprof_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"msprof, .*PATH.*set_env\.sh"):
        msprof.export(tmp_path)


def test_call_sites_of_a_device_that_is_not_there(run_python):
    done = run_python("-c", "import virtual_npu; virtual_npu.record_call_sites(True)")
    assert done.returncode != 0 and "is not loaded" in done.stderr
    assert virtual_npu.is_active()
