"""Checks that run other tools of the project: doctor, dtypes, profiler, planner."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

from paddle_fused import strict_json

from . import training
from .checks import Job
from .journal import Journal, number

if TYPE_CHECKING:
    from llm_npu.plan.answer import Answer

PROFILED = "4:6"  # steps
# The run for the planner's prediction: a model that saturates a card, and a small one for a host's CPU.
OF_A_CARD = {"model": "tinyllama-1.1b", "max_seq_length": 2048, "per_device_train_batch_size": 2}
OF_A_HOST = {"model": "llama-tiny", "max_seq_length": 64, "per_device_train_batch_size": 2}
STEPS, WARM = 10, 4  # the first steps compile kernels


def doctor(job: Job, journal: Journal) -> None:
    with journal.case("doctor"):
        command = ["-m", "llm_npu", "doctor", "--json", "--device", job.device_name]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, errors="replace")
        for finding in json.loads(done.stdout)["findings"]:
            name = f"doctor: {finding['check']}"
            if finding["level"] == "error":
                journal.differs(name, f"{finding['message']}. {finding['fix']}")
            else:
                journal.note(name, f"{finding['level']}: {finding['message']}. {finding['fix']}".strip())


def dtypes(job: Job, journal: Journal) -> None:
    name = "tensors and kernels of llama-tiny"
    with journal.case(name):
        arguments = ["llama-tiny", "--json", "--host", "--device", job.device_name]
        report = json.loads(training.command("check_dtypes", arguments, accepted=(0, 1)))
        for finding in report["findings"]:
            journal.differs(name, strict_json.dumps(finding))
        if not report["findings"]:
            journal.same(name, "all run on the device's cores")


def profile(job: Job, journal: Journal) -> None:
    output = job.folder / "out"
    with journal.case("recording"):
        arguments = {"profile": f"steps={PROFILED}", "max_steps": 8, "save_strategy": "no"}
        training.run(job, output, arguments)
        journal.same("recording", f"steps {PROFILED} were recorded")
    with journal.case("report"):
        from llm_npu.profiling.report import summary
        from llm_npu.profiling.report.pages import plain

        report = summary.build(output / "profile")
        tasks = sum(rank.tasks for rank in report.ranks)
        counts = f"{tasks} tasks in {report.steps} steps"
        journal.judge("report", tasks > 0 and report.steps > 0, counts, "tasks and steps", counts)
        for note in report.notes:  # parts of a fresh profile that were skipped
            journal.differs("report", f"parts of the profile could not be read: {note}")
        (job.folder / "text.txt").write_text(plain.write(report), encoding="utf-8")


def plan(job: Job, journal: Journal) -> None:
    """Compare one run with the predicted speed and memory."""
    planned = planned_for(job)
    with journal.case("the run"):
        output, inputs = job.folder / "out", training.inputs(job.shared)
        flags = {"input_dir": inputs["input_dir"], "data_cache": inputs["data_cache"]}
        flags |= {"output_dir": output, "device": job.device_name, "max_steps": STEPS, "split": "100,0,0"}
        flags |= {"do_eval": "false", "save_strategy": "no", "disable_tqdm": "true"}
        arguments = [*planned.layout.arguments(planned.shape), *training.words(flags)]
        training.command("train", arguments)
        records = training.steps(output)
        compare_speed(job, journal, records, planned)
        peak, predicted = max(record["peak_memory"] for record in records), planned.memory.peak_memory_bytes
        journal.judge(
            f"memory of {planned.shape.name}",
            abs(peak / predicted - 1) <= planned.memory_width,
            f"{peak / 2**20:,.0f} MiB, predicted {predicted / 2**20:,.0f}: {peak / predicted - 1:+.1%}, "
            f"allowed {planned.memory_width:.0%}",
            f"{predicted / 2**20:,.0f} MiB",
            f"{peak / 2**20:,.0f} MiB",
        )


def planned_for(job: Job) -> Answer:
    """The planner's answer for the configuration that ``plan`` runs."""
    from llm_npu.core import cards
    from llm_npu.plan import answer
    from llm_npu.plan.layout import Layout
    from llm_npu.plan.shape import ModelShape

    sizes = dict(OF_A_HOST if job.is_virtual else OF_A_CARD)
    shape = ModelShape.of(sizes.pop("model"))
    return answer.planned(shape, Layout(cards=1, **sizes), cards.card(job.card))


def compare_speed(job: Job, journal: Journal, records: list[dict], planned: Answer) -> None:
    """Compare the median speed of ``records`` with the planner's range; on the virtual NPU only note it."""
    speed = statistics.median(record["tokens_per_s"] for record in records[WARM:])
    predicted = planned.time.tokens_per_second_per_card
    message = f"{speed:,.0f} tokens/s; the planner predicts {predicted:,.0f} for one {job.card}"
    if job.is_virtual:
        journal.note("speed", f"{message}: the speed of a host's CPU says nothing about a card")
        return
    # A predicted time t covers t / (1 + w) to t / (1 - w), so a speed s covers s (1 - w) to s (1 + w).
    width, error = planned.interval.width, abs(speed / predicted - 1)
    message += f", within {width:.0%}; difference {error:.0%}"
    journal.judge("speed", error <= width, message, number(predicted), number(speed))
