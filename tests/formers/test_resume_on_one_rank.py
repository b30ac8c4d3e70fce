"""PaddleFormers' trainer on one rank resumes from its default format of checkpoints."""

from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("resume_program.py")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("family", "dtype"), [("llama", "float32"), ("llama", "bfloat16"), ("qwen2_5_vl", "bfloat16")]
)
def test_a_resumed_run_ends_with_the_same_weights(run_python, tmp_path, family, dtype):
    done = run_python(PROGRAM, tmp_path, family, dtype, "patched")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "resumed"


def test_without_the_patch_there_are_no_groups(run_python, tmp_path):
    done = run_python(PROGRAM, tmp_path, "llama", "float32")
    assert "'Fleet' object has no attribute '_hcg'" in done.stderr
