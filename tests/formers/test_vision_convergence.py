"""Twenty float32 steps of the published file for Qwen3-VL track the steps of the unfused model.

Each run is a process of ``llm-npu formers train``. For an unfused run, ``watch_steps.py`` removes the fused
operators before the first step. The rule is that of tests/shared/roundings.py.
"""

import functools
import os
import re

import front_ends
import numpy as np
import pytest
import watch_steps
from front_ends import finished, train
from places import SHARED
from roundings import ADAM_EPSILON, assert_trained_alike
from vision_recipes import configuration, make_task

pytestmark = pytest.mark.slow

*FUSED, _, _ = front_ends.of_page("train")
STEPS = 20
SECONDS = 1800  # of a job, on a busy machine
NORM = re.compile(r"^gradient norm: (\S+)$", re.MULTILINE)
CEILING = 1e-4  # of a quantity's largest value, whatever the noise floor
SHORT = {
    **front_ends.FLOAT32,
    "max_steps": STEPS,
    "gradient_accumulation_steps": 1,
    "adam_epsilon": ADAM_EPSILON,
    "freeze_config": "",  # trains the vision tower
}
UNFUSED = {"_attn_implementation": "eager"}  # and RMSNorm in plain Paddle: front_ends.with_own_norm


def quantities(run_python, folder, content: dict, model: str) -> tuple[dict[str, list[float]], dict]:
    """Losses and gradient norms of each step, and the fused operators that ran."""
    watched = {
        "LLM_NPU_ON_IMPORT": "paddleformers.trainer.trainer_callback=watch_steps",
        "PYTHONPATH": os.pathsep.join(map(str, (front_ends.HERE, SHARED))),
        "ASCEND_RT_VISIBLE_DEVICES": "0",
        watch_steps.MODEL: model,
    }
    done, logs = train(run_python, FUSED, folder, content, timeout=SECONDS, **watched)
    result = finished(done, logs, STEPS)
    norms = NORM.findall((logs / "workerlog.0").read_text(errors="replace"))
    return {"losses": result.losses, "gradient norms": [*map(float, norms)]}, result.ran[0]


def test_twenty_steps(run_python, tmp_path):
    task = make_task(run_python, "qwen3_vl", tmp_path)
    plain = front_ends.with_own_norm(task / "model", task / "plain")
    content = configuration("qwen3_vl", task, **SHORT)
    run = functools.partial(quantities, run_python)
    fused, ran = run(tmp_path / "fused", content, "fused")
    assert {operator for operator, _ in ran} == {"flash_attention", "rms_norm", "rotary_mul", "swiglu"}
    content |= {**UNFUSED, "model_name_or_path": str(plain)}
    unfused, nothing = run(tmp_path / "unfused", content, "unfused")
    assert nothing == {}
    others, _ = run(tmp_path / "others", content, "0")
    for name, values in fused.items():
        assert_trained_alike(name, values, unfused[name], [others[name]])
        apart = np.abs(np.subtract(values, unfused[name])).max()
        assert apart <= CEILING * max(unfused[name]), (name, values, unfused[name])
    assert fused["losses"][-1] < 0.9 * fused["losses"][0]
