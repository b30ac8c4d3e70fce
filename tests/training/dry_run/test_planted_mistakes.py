"""A program on 1,024 ranks whose second stage makes a mistake: a dry run names both sides' lines."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "ranks_program.py"
START = """
import sys
from pathlib import Path
from llm_npu.training.dry_run import all_ranks
sys.exit(all_ranks.start(sys.argv[2:], 1024, Path(sys.argv[1])))
"""


def line_of(text: str) -> str:
    """The place of the only line of the program that contains ``text``."""
    lines = PROGRAM.read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"{PROGRAM.name}:{number} "


def run(run_python, folder: Path, mistake: str):
    file = folder / "start.py"
    file.write_text(START)
    return run_python(file, folder / "report", PROGRAM, mistake, VIRTUAL_NPU_DRY="1")


def test_a_correct_program_matches(run_python, tmp_path):
    done = run(run_python, tmp_path, "none")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report" / "ranks.json").read_text())
    assert report["ranks"] == 1024 and report["collectives"] > 1024 and "mismatch" not in report
    assert [(role["representative"], role["ranks"]) for role in report["roles"]] == [(0, 512), (8, 512)]


@pytest.mark.parametrize(
    ("mistake", "places"),
    [
        (
            "group",
            ["dist.all_reduce(norm, group=data", "dist.broadcast(norm, pipeline.ranks[0], pipeline)  # last"],
        ),
        (
            "size",
            [
                "dist.send(activation, pipeline.ranks[1], pipeline)",
                "dist.recv(activation, pipeline.ranks[0], pipeline)  # first",
            ],
        ),
        (
            "order",
            [
                "dist.all_reduce(norm, group=data",
                "dist.broadcast(norm, pipeline.ranks[0], pipeline)  # first",
            ],
        ),
        ("created", ["dist.new_group([0, 2])", "pairs = "]),
        ("deadlock", ["dist.send(activation, pipeline.ranks[1 if first else 0], pipeline)"]),
        ("parts", ["dist.alltoall_single"]),
    ],
)
def test_a_mistake_is_named_with_both_lines(run_python, tmp_path, mistake, places):
    done = run(run_python, tmp_path, mistake)
    assert done.returncode == 1, done.stdout + done.stderr
    error = done.stderr[done.stderr.index("error: ") :]
    assert "rank 0" in error or mistake == "parts"
    assert "rank 8" in error
    assert all(line_of(place).strip() in error for place in places), error
