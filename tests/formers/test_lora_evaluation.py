"""PaddleFormers' trainer evaluates a LoRA model without paddlefleet."""

import pytest
from places import TESTS

pytestmark = pytest.mark.slow

PROGRAM = TESTS / "upstream/programs/paddleformers/lora_evaluation.py"


def test_a_lora_model_is_evaluated(run_python):
    """The report's program, which fails without the prefix."""
    done = run_python("-m", "llm_npu.formers", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert "evaluated" in done.stdout.splitlines()
