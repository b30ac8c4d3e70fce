"""docs/profiling_report.md: its commands run, its picture is there, it explains every section of a report."""

import re
import shlex

import pytest
from handmade_profiles import tree
from places import ROOT

from llm_npu.profiling.report import fusion, summary
from llm_npu.profiling.report.pages import plain

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs"
TEXT = (DOCS / "profiling_report.md").read_text()


def test_the_commands_run(run_python, tmp_path):
    for name in ("profile", "before", "after", "machine0"):
        tree.write(tmp_path / name, events=2_000, ranks=2)
    (tmp_path / "machine1").mkdir()
    (tmp_path / "machine0/rank_1").rename(tmp_path / "machine1/rank_1")
    (commands,) = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for command in commands.strip().splitlines():
        program, *arguments = shlex.split(command, comments=True)
        assert program == "llm-npu"
        result = run_python("-m", "llm_npu", *arguments, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    assert (tmp_path / "report.html").exists()


def test_the_picture_is_there():
    for name in re.findall(r"\]\((images/[^)]+)\)", TEXT):
        assert (DOCS / name).read_bytes().startswith(b"\x89PNG")


def test_every_section_is_explained(tmp_path):
    tree.write(tmp_path, events=2_000, ranks=2)
    report = summary.build(tmp_path)
    words = plain.write(report)
    for section in (
        "Advice",
        "Time by class",
        "Top operators",
        "Fused operators",
        "Steps",
        "Ranks",
        "Memory",
    ):
        assert f"\n{section}" in words and f"| {section} |" in TEXT
    assert all(kind.name in TEXT for kind in fusion.coverage(report.operators))


def test_a_report_names_the_planted_faults(tmp_path):
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
