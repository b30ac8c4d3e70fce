"""What the report concludes: fused operators that are missing, advice and evidence, changes."""

from dataclasses import replace

import pytest
from handmade_profiles import msprof, paddle_trace
from handmade_profiles.msprof import Task

from llm_npu.profiling.report import compare, summary
from llm_npu.profiling.report.pages import plain

LLAMA = [
    Task("MatMulV2", "AI_CORE", 0, 100),
    Task("FlashAttentionScore", "MIX_AIC", 100, 100),
    Task("RmsNorm", "AI_VECTOR_CORE", 200, 50),
    Task("SwiGlu", "AI_VECTOR_CORE", 250, 50),
    Task("RotaryPositionEmbedding", "AI_VECTOR_CORE", 300, 50),
    Task("ApplyAdamWV2", "AI_VECTOR_CORE", 350, 50),
]
FUSED = ["attention", "RMSNorm", "SwiGLU", "rotary embedding", "AdamW"]
SMALL = {
    "attention": ["BatchMatMulV2", "SoftmaxV2"],
    "RMSNorm": ["Pow", "ReduceMean", "Rsqrt"],
    "SwiGLU": ["Swish"],
    "rotary embedding": ["Neg", "ConcatD"],
    "AdamW": ["ApplyAdamD"],
}


def report_on(folder, tasks):
    msprof.write(folder / "PROF_1", tasks)
    return summary.build(folder)


def behind(tasks, kinds, duration=50, engine="AI_VECTOR_CORE", dtypes="DT_BF16;DT_BF16"):
    """``tasks``, and behind them one of each of ``kinds``."""
    end = max(task.start + task.duration for task in tasks)
    more = [Task(kind, engine, end + i * duration, duration, dtypes=dtypes) for i, kind in enumerate(kinds)]
    return [*tasks, *more]


def titles(report):
    return [advice.title for advice in report.advice]


def test_nothing_to_say_about_a_fused_model(tmp_path):
    report = report_on(tmp_path, LLAMA)
    assert [(kind.name, kind.status) for kind in report.coverage] == [(name, "fused") for name in FUSED]
    assert report.advice == []
    assert "Nothing stands out." in plain.write(report)


@pytest.mark.sampled
@pytest.mark.parametrize("name", FUSED)
def test_each_operator_that_is_not_fused_is_named(tmp_path, name):
    gone = 1 + FUSED.index(name)
    without = [*LLAMA[:gone], replace(LLAMA[gone], kind="Add"), *LLAMA[gone + 1 :]]
    report = report_on(tmp_path, behind(without, SMALL[name]))
    states = {kind.name: kind for kind in report.coverage}
    assert states[name].status == "not fused"
    assert sorted(states[name].parts) == sorted(SMALL[name])
    assert states[name].unfused_time == 50_000 * len(SMALL[name])
    assert {kind.status for other, kind in states.items() if other != name} == {"fused"}
    (advice,) = report.advice
    assert advice.title == f"{name} is not fused" and advice.at_stake == states[name].unfused_time
    assert all(part in advice.evidence for part in SMALL[name])


def test_paddles_names_are_known_too(tmp_path):
    names = ["matmul", "softmax", "rms_norm_npu", "rms_norm_npu_grad", "swiglu", "fused_rope", "adamw"]
    report = report_on(tmp_path, behind([LLAMA[0]], names))
    assert [kind.status for kind in report.coverage] == ["not fused", "fused", "fused", "fused", "fused"]


def test_a_llama_of_paddles_operators(tmp_path):
    """The kernels that PaddleNLP's Llama launches when nothing of it is fused."""
    names = ["matmul", "softmax", "softmax_grad", "pow", "mean", "rsqrt", "rsqrt_grad", "silu", "multiply"]
    report = report_on(tmp_path, behind([LLAMA[0]], [*names, "scale", "strided_copy", "concat", "adamw"]))
    assert [kind.status for kind in report.coverage] == [*["not fused"] * 4, "fused"]
    assert report.coverage[3].parts == ("concat",)


def test_scaling_beside_the_fused_rotary_embedding_is_no_second_one(tmp_path):
    report = report_on(tmp_path, behind([LLAMA[0]], ["swiglu", "fused_rope", "concat", "scale"]))
    assert report.coverage[3].status == "fused"


def test_dtypes_with_hardly_a_share_are_not_shown(tmp_path):
    tasks = behind([LLAMA[0]], ["Cast"] * 3)
    tasks = behind(tasks, ["Cast"], duration=50, dtypes="FLOAT")
    tasks = behind(tasks, ["Cast"], duration=0.25, dtypes="BOOL")
    report = report_on(tmp_path, tasks)
    assert (
        next(operator for operator in report.operators if operator.name == "Cast").dtypes
        == "bfloat16 75%; float32 25%"
    )


def test_some_layers_fused(tmp_path):
    report = report_on(tmp_path, behind(LLAMA, SMALL["RMSNorm"], duration=25))
    kind = report.coverage[1]
    assert (kind.status, kind.fused_time, kind.unfused_time) == ("partly fused", 50_000, 75_000)


def test_the_routers_softmax_is_no_attention(tmp_path):
    report = report_on(tmp_path, behind(LLAMA, ["SoftmaxV2"]))
    assert report.coverage[0].status == "fused"


def test_aicpu_is_always_mentioned_with_dtype_and_line(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", LLAMA)
    tasks = behind(LLAMA, ["Cast"], duration=1, engine="AI_CPU", dtypes="DOUBLE;FLOAT")
    lines = msprof.op_summary(tasks).splitlines()
    sites = ["Call Site", *["a.py:1"] * len(LLAMA), "train.py:12"]
    table = "\n".join(f"{line},{site}" for line, site in zip(lines, sites, strict=True))
    (output / f"op_summary_{msprof.STAMP}.csv").write_text(table + "\n")
    (advice,) = summary.build(tmp_path).advice
    assert advice.title.startswith("AICPU")
    assert advice.evidence == "Cast (float64, float32) at train.py:12: 1 calls, 1.00 us"
    assert advice.at_stake == 1_000
    assert "llm_npu.dtypes names the line" in advice.fix and "scripts/check_dtypes.py" in advice.fix


HCCL_ON_AICPU = [
    "allreduceAicpuKernel",
    "reduce_scatterAicpuKernel",
    "hcomAicpuInit",
    "RunAicpuKfcSrvLaunch",
    "RunAicpuRpcSrvLaunchV2_alltoall",
    "RunAicpuKfcResInitV2",
    "MatmulAllReduceAicpu",
]


@pytest.mark.sampled
@pytest.mark.parametrize("known_by", ["type", "name"])
@pytest.mark.parametrize("kind", HCCL_ON_AICPU)
def test_what_hccl_runs_on_the_aicpu_is_communication(tmp_path, kind, known_by):
    """With --task-time=l0 there are no types: the names end in numbers then."""
    task = Task(kind, "AI_CPU", 400, 200, dtypes="N/A", shapes="N/A")
    if known_by == "name":
        task = replace(task, kind="N/A", name=f"{kind}_360_1_1")
    report = report_on(tmp_path, [*LLAMA, task])
    (rank,) = report.ranks
    assert (rank.works["AICPU"].calls, rank.works["communication"].calls) == (0, 1)
    assert (rank.communication, rank.hidden, rank.exposed) == (200_000, 0, 200_000)
    assert [operator.work for operator in report.operators if operator.name == kind] == ["communication"]
    assert titles(report) == ["Communication is exposed"] and report.notes == []


@pytest.mark.sampled
@pytest.mark.parametrize("where", ["table", "timeline"])
def test_a_collective_and_its_kernel_on_the_aicpu_count_once(tmp_path, where):
    """Recent releases of msprof have the collective in the timeline only, and the kernel in the table."""
    kernel = Task("allreduceAicpuKernel", "AI_CPU", 400, 200, name="allreduceAicpuKernel", dtypes="N/A")
    collective = Task("hcom_allReduce_", "HCCL", 400, 200, name="hcom_allReduce__360_0_1", dtypes="N/A")
    tasks = [*LLAMA, kernel, collective]
    output = msprof.write(tmp_path / "PROF_1", tasks)
    if where == "timeline":
        (output / f"op_summary_{msprof.STAMP}.csv").write_text(msprof.op_summary(tasks[:-1]))
        (output / f"op_statistic_{msprof.STAMP}.csv").write_text(msprof.op_statistic(tasks[:-1]))
    report = summary.build(tmp_path)
    (rank,) = report.ranks
    assert (rank.communication, rank.exposed, rank.window) == (200_000, 200_000, 600_000)
    assert list(rank.collectives["name"]) == ["hcom_allReduce__360_0_1"]
    assert report.notes == []


def test_an_operator_on_the_aicpu_beside_hccl_is_still_a_fault(tmp_path):
    kernel = Task("allreduceAicpuKernel", "AI_CPU", 400, 200)
    report = report_on(tmp_path, behind([*LLAMA, kernel], ["Cast"], engine="AI_CPU", dtypes="DOUBLE"))
    (advice,) = [advice for advice in report.advice if "AICPU" in advice.title]
    assert advice.evidence == "Cast (float64): 1 calls, 50.0 us" and advice.at_stake == 50_000


@pytest.mark.parametrize(
    ("more", "title", "evidence", "fix"),
    [
        (
            {"kinds": ["masked_select"], "engine": "HOST_CPU"},
            "Host CPU runs operators without a kernel in the plugin",
            "masked_select",
            "scripts/check_dtypes.py MODEL --host",
        ),
        (
            {"kinds": ["MatMulV3"], "engine": "AI_CORE", "dtypes": "FLOAT;FLOAT"},
            "Matmuls run in float32",
            "MatMulV3 (float32)",
            "--bf16",
        ),
        (
            {"kinds": ["Cast", "TransData", "Transpose"]},
            "Conversions of dtype and layout take a large share of the time",
            "27%",
            "one dtype",
        ),
    ],
)
def test_what_is_slow_is_mentioned(tmp_path, more, title, evidence, fix):
    (advice,) = report_on(tmp_path, behind(LLAMA, **more)).advice
    assert advice.title == title and evidence in advice.evidence and fix in advice.fix


def test_advice_is_ranked_by_the_time_at_stake(tmp_path):
    tasks = behind(LLAMA, ["hcom_allReduce_"], duration=300, engine="HCCL")
    tasks = behind(behind(tasks, ["Cast"], duration=20, engine="AI_CPU"), ["Swish"], duration=40)
    report = report_on(tmp_path, [*tasks, Task("Mul", "AI_VECTOR_CORE", 1000, 10)])
    stakes = [advice.at_stake for advice in report.advice]
    assert stakes == [300_000, 240_000, 40_000, 20_000] and stakes == sorted(stakes, reverse=True)
    assert titles(report) == [
        "Communication is exposed",
        "The device is idle",
        "SwiGLU is partly fused",
        "AICPU runs operators that belong on the AI cores",
    ]
    assert "300.0 us of 300.0 us (100%) is not hidden" in report.advice[0].evidence


def test_hidden_communication_is_no_problem(tmp_path):
    report = report_on(tmp_path, [*LLAMA, Task("hcom_allReduce_", "HCCL", 0, 390)])
    assert report.advice == [] and report.ranks[0].hidden == 390_000


def test_waiting_for_data_and_a_slow_first_step(tmp_path):
    tasks = [Task("Mul", "AI_VECTOR_CORE", start, 50) for start in (450, 550, 650)]
    msprof.write(tmp_path / "PROF_1", tasks)
    trace = paddle_trace.Trace(offset="0")
    for number, (start, end) in enumerate([(0, 500), (500, 600), (600, 700)]):
        trace.add(f"ProfileStep#{number}", "ProfileStep", start, end - start)
        trace.add("DataLoader", "Dataloader", start, end - start - 50)
    trace.write(tmp_path)
    idle, steps = summary.build(tmp_path).advice
    assert idle.title == "The device is idle" and "550.0 us of data stall" in idle.evidence
    assert idle.fix.startswith("Use more data loader workers")
    assert steps.title == "Steps of rank 0 differ" and "compile" in steps.fix and steps.at_stake == 400_000


def test_reserved_memory_that_is_not_used(tmp_path):
    output = msprof.write(tmp_path / "PROF_1", LLAMA)
    line = f"GE,{msprof.since_1970(3)},{100 << 10},{200 << 10},NPU:0\n"
    heading = "Component,Timestamp(us),Total Allocated(KB),Total Reserved(KB),Device\n"
    (output / f"memory_record_{msprof.STAMP}.csv").write_text(heading + line)
    (advice,) = summary.build(tmp_path).advice
    assert "100 MiB" in advice.evidence and "200 MiB" in advice.evidence


def test_what_changed(tmp_path):
    before = report_on(tmp_path / "before", behind(LLAMA[:3] + LLAMA[4:], ["Swish"], duration=80))
    after = report_on(tmp_path / "after", LLAMA)
    comparison = compare.compare(before, after)
    assert comparison.unit == "profile"
    assert [(change.name, change.difference) for change in comparison.operators[:2]] == [
        ("Swish (vector)", -80_000),
        ("SwiGlu (vector)", 50_000),
    ]
    assert {change.name: change.difference for change in comparison.spent if change.difference} == {
        "vector": -30_000,
        "idle": -50_000,
    }
    assert comparison.total.difference == after.ranks[0].window - before.ranks[0].window == -80_000
    assert comparison.coverage == [("SwiGLU", "not fused", "fused")]
    words = plain.write(after, comparison)
    assert "gone" in words and "new" in words and "What changed, per rank, whole profile" in words


def test_changes_are_per_step(tmp_path):
    reports = []
    for name, steps in (("before", 2), ("after", 4)):
        msprof.write(tmp_path / name / "PROF_1", [Task("Mul", "AI_CORE", 100 * i, 60) for i in range(steps)])
        trace = paddle_trace.Trace(offset="0")
        for i in range(steps):
            trace.add(f"ProfileStep#{i}", "ProfileStep", 100 * i, 100)
        trace.write(tmp_path / name)
        reports.append(summary.build(tmp_path / name))
    comparison = compare.compare(*reports)
    assert comparison.unit == "step"
    assert (comparison.total.before, comparison.total.after) == (100_000, 100_000)
    (change,) = comparison.operators
    assert (change.before, change.after, change.calls_before, change.calls_after) == (60_000, 60_000, 1, 1)


def test_steps_that_one_rank_alone_marks_are_no_unit(tmp_path):
    """Divided by its steps, the times of all ranks would be twice those of one."""
    for name in ("before", "after"):
        for rank in range(2):
            folder = tmp_path / name / f"rank_{rank}"
            msprof.write(folder / "PROF_1", [Task("Mul", "AI_CORE", 100 * i, 60) for i in range(2)])
        trace = paddle_trace.Trace(offset="0")
        for i in range(2):
            trace.add(f"ProfileStep#{i}", "ProfileStep", 100 * i, 100)
        trace.write(tmp_path / name / "rank_0")
    comparison = compare.compare(*(summary.build(tmp_path / name) for name in ("before", "after")))
    assert comparison.unit == "profile" and comparison.operators[0].before == 120_000


def test_of_many_steps_the_longest_are_shown(tmp_path):
    msprof.write(tmp_path / "PROF_1", [Task("Mul", "AI_CORE", 100 * i, 60 + i % 2) for i in range(50)])
    trace = paddle_trace.Trace(offset="0")
    for i in range(50):
        trace.add(f"ProfileStep#{i}", "ProfileStep", 100 * i, 100 - (i == 7))
    trace.write(tmp_path)
    words = plain.write(summary.build(tmp_path))
    assert "The longest 40 of 50 steps." in words and "ProfileStep#7 " not in words
