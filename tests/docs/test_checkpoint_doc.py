"""docs/checkpoints.md: its example runs, and it names every file of a checkpoint."""

import re

import pytest
from places import ROOT

from llm_npu.training import checkpoint
from llm_npu.training.checkpoint import states

pytestmark = pytest.mark.slow

TEXT = (ROOT / "docs/checkpoints.md").read_text()


def test_the_example_runs(run_program, tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    result = run_program(example, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert checkpoint.to_resume(True, tmp_path / "checkpoints").name == "checkpoint-7"


def test_the_files_are_named():
    for file in (checkpoint.MARK, states.RUN_FILE, "trainer_state.json", "optimizer.safetensors"):
        assert f"`{file}`" in TEXT
