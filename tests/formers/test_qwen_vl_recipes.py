"""The published file for Qwen3-VL on two ranks, with a trained vision tower: the losses are one process's.

Each run is a process of ``llm-npu formers train``.
"""

import front_ends
import pytest
from front_ends import finished, train
from vision_recipes import configuration, make_task

pytestmark = pytest.mark.slow

*FUSED, _, _ = front_ends.of_page("train")
STEPS = 5
SECONDS = 1800  # of a job, on a busy machine
OPERATORS = {"flash_attention", "rms_norm", "rotary_mul", "swiglu"}
SHORT = {"max_steps": STEPS, "warmup_steps": 0, "learning_rate": 5.0e-4, "gradient_accumulation_steps": 2}
TENSOR_PARALLEL = {"tensor_model_parallel_size": 2, "sequence_parallel": True}


def test_two_ranks_train_as_one_process(run_python, tmp_path):
    task = make_task(run_python, "qwen3_vl", tmp_path)

    def run(name: str, devices: str, **changes):
        content = configuration("qwen3_vl", task, **SHORT, freeze_config="", **changes)
        more = {"ASCEND_RT_VISIBLE_DEVICES": devices, "timeout": SECONDS}
        done, logs = train(run_python, FUSED, tmp_path / name, content, **more)
        return finished(done, logs, STEPS)

    alone, shared = run("alone", "0"), run("shared", "0,1", **TENSOR_PARALLEL)
    assert front_ends.distance(shared.losses, alone.losses) < front_ends.CEILING, (
        shared.losses,
        alone.losses,
    )
    assert alone.losses[-1] < 0.9 * alone.losses[0]
    assert all({operator for operator, _ in rank} == OPERATORS for rank in shared.ran)
