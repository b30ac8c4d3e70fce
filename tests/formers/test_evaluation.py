"""``eval_loss`` of PaddleFormers' trainer is the mean over all rows, on one rank and on two."""

import front_ends
import pytest
from places import TESTS
from vision_recipes import configuration, evaluations, make_task, with_template, write_template

pytestmark = pytest.mark.slow

*FUSED, _, _ = front_ends.of_page("train")
PROGRAMS = TESTS / "upstream/programs"
# The weights do not change. One rank and two evaluate batches of the same rows.
STILL = {"max_steps": 1, "eval_steps": 1, "learning_rate": 1.0e-12, "min_lr": 0.0, "warmup_ratio": 0.0}
STILL |= {"gradient_accumulation_steps": 1, "per_device_eval_batch_size": 2}


def test_the_rows_of_all_ranks_count(run_python, tmp_path):
    """The report's program, whose rows have their numbers as losses."""
    launch = ("-m", "paddle.distributed.launch", "--devices", "0,1", "--log_dir", tmp_path)
    program = PROGRAMS / "paddleformers_ranks/evaluation_of_ranks.py"
    done = run_python("-m", "llm_npu.formers", *launch, program, MASTER_PORT=front_ends.free_port())
    assert "eval_loss: 3.5" in done.stdout, done.stdout + done.stderr


def test_the_last_row_is_read_once(run_python):
    program = PROGRAMS / "paddleformers/last_row_twice.py"
    patched = "from llm_npu.patches import paddleformers; paddleformers.apply_to_trainer(); "
    done = run_python("-c", patched + "import runpy, sys; runpy.run_path(sys.argv[1])", program)
    assert done.stdout.splitlines()[-1] == "rows: [[0], [1], [2]]", done.stdout + done.stderr


def test_a_job_evaluates_the_same_rows_on_two_ranks(run_python, tmp_path):
    task = make_task(run_python, "paddleocr_vl", tmp_path / "task")
    content = configuration("paddleocr_vl", task, **STILL) | with_template(write_template(tmp_path))
    losses = []
    for devices in ("0", "0,1"):
        done, logs = front_ends.train(
            run_python, FUSED, tmp_path / devices, content, ASCEND_RT_VISIBLE_DEVICES=devices
        )
        assert done.returncode == 0, (logs / "workerlog.0").read_text(errors="replace")[-3000:]
        losses.append(evaluations(logs)[0])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5), losses
