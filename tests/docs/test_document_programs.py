"""The programs in the blocks of Python of these pages run as they are printed."""

import re

import pytest
from places import ROOT

pytestmark = pytest.mark.slow


def test_the_examples_of_inference_run(run_program):
    """One after the other, with weights and a tokenizer of their own."""
    result = run_program("\n".join(blocks("inference.md")))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_program_of_profiling_records_a_profile(run_python, tmp_path):
    """In a process that does not know of the virtual NPU."""
    [program] = blocks("profiling.md")
    (tmp_path / "program.py").write_text(program)
    result = run_python(tmp_path / "program.py", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "profile/rank_0/trace.json").is_file()


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
