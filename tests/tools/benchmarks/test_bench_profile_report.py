"""python -m benchmarks profile runs, and its made-up profile has the faults that the report names."""

import json

import pytest

from benchmarks.profile import command, tree
from llm_npu.profiling.report import summary

pytestmark = pytest.mark.slow


def test_figures():
    result = command.bench(events=4_000, ranks=2)
    assert json.loads(json.dumps(result)) == result
    assert result["seconds"] > 0 and result["gb"] > 0 and not result["goal_met"]
    assert "too few events for the goal" in command.text(result)


def test_the_made_up_profile(tmp_path):
    tasks = tree.write(tmp_path, events=8_000, ranks=2)
    report = summary.build(tmp_path)
    assert sum(rank.tasks for rank in report.ranks) == tasks == 2_000
    assert report.steps == 2 * (tasks // 2 // 107) and report.notes == []
    titles = {advice.title for advice in report.advice}
    assert {
        "SwiGLU is not fused",
        "Communication is exposed",
        "AICPU runs operators that belong on the AI cores",
        "Host CPU runs operators without a kernel in the plugin",
        "The other ranks wait for rank 1",
    } <= titles
    first, second = report.ranks
    assert second.computing > first.computing and first.launch_bound > 0
