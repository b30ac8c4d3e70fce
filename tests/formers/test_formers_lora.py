"""LoRA beside PaddleFormers' trainer: two reports, whose programs show their defects without the prefix."""

import front_ends
import pytest
from places import TESTS

pytestmark = pytest.mark.slow

PROGRAMS = TESTS / "upstream/programs"


def test_a_lora_model_is_evaluated(run_python):
    done = run_python("-m", "llm_npu.formers", PROGRAMS / "paddleformers/lora_evaluation.py")
    assert done.returncode == 0, done.stderr
    assert "evaluated" in done.stdout.splitlines()


def test_the_bound_of_random_weights_is_that_of_one_rank(run_python, tmp_path):
    launch = ("-m", "paddle.distributed.launch", "--devices", "0,1", "--log_dir", tmp_path)
    program = PROGRAMS / "paddleformers_ranks/lora_of_row_parallel_layers.py"
    done = run_python("-m", "llm_npu.formers", *launch, program, MASTER_PORT=front_ends.free_port())
    assert "bound / bound on one rank: 1.00" in done.stdout, done.stdout + done.stderr
