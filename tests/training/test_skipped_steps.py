"""Steps that are skipped because a number is not finite: how many, and what they do to checkpoints."""

import json
import re
from types import SimpleNamespace

import paddle
import pytest
import run_inputs
from checkpoint_files import store
from places import ROOT

from llm_npu.models.stored import Stored
from llm_npu.training import checkpoint, metrics
from llm_npu.training.nonfinite import SkippedSteps, check_weights
from llm_npu.training.step import FinishedStep, StepTimes

TIMES = StepTimes(1.0, 0.0, 0.0, 0.0)


class Run:
    """The steps of a run of 100, of which every other one is due to be saved."""

    def __init__(self, output_dir, scale=None, weight=1.0):
        self.scale, self.weight, self.saved = scale, weight, []
        self.state = SimpleNamespace(global_step=0, max_steps=100)
        self.arguments = SimpleNamespace(output_dir=str(output_dir))
        weights = [("norm", paddle.ones([2])), ("head", paddle.to_tensor([1.0, weight]))]
        self.skipped = SkippedSteps(lambda: self.step, lambda: self.scale, lambda: weights)

    def steps(self, *losses, skipped=True):
        for loss in losses:
            self.state.global_step += 1
            self.step = FinishedStep(loss, 10, 0, TIMES, skipped=skipped)
            due = self.state.global_step % 2 == 0
            control = SimpleNamespace(should_save=due, should_training_stop=False)
            self.skipped.on_step_end(self.arguments, self.state, control)
            if control.should_save:
                self.saved.append(self.state.global_step)


NAN = float("nan")


def test_as_many_in_a_row_end_the_run(tmp_path):
    store(tmp_path, 8, {"a": "b"})
    run = Run(tmp_path)
    for _ in range(3):
        run.steps(*[NAN] * 9)
        run.steps(2.0, skipped=False)
    run.steps(*[NAN] * 9)
    with pytest.raises(ValueError, match=r"10 steps .*checkpoint-8 is complete"):
        run.steps(NAN)


def test_a_weight_ends_it_at_once(tmp_path):
    run = Run(tmp_path, weight=float("inf"))
    with pytest.raises(ValueError, match="weight head is not finite"):
        run.steps(2.0)


def test_the_search_for_a_loss_scale_does_not_count(tmp_path):
    run = Run(tmp_path, scale=2.0**15)
    while run.scale >= 1:
        run.steps(2.0)  # the loss is finite, and the scaled gradients are not
        run.scale /= 2
    run.steps(*[2.0] * 9)
    with pytest.raises(ValueError, match=r"26 steps .* 0\.5"):
        run.steps(2.0)
    run = Run(tmp_path, scale=2.0**15)
    with pytest.raises(ValueError, match="last 10 steps"):
        run.steps(*[NAN] * 10)  # no scale changes the loss


def test_a_checkpoint_waits_for_a_step_that_is_taken(tmp_path):
    run = Run(tmp_path)
    run.steps(2.0, 2.0, skipped=False)
    run.steps(*[NAN] * 5)
    assert run.saved == [2]
    run.steps(2.0, 2.0, 2.0, skipped=False)
    assert run.saved == [2, 8, 10]
    run.steps(NAN, NAN, NAN)
    run.steps(2.0, skipped=False)  # 14, which is due itself
    assert run.saved == [2, 8, 10, 14]


def test_a_run_that_ends_in_skipped_steps_has_not_succeeded(tmp_path):
    run = Run(tmp_path, scale=2.0**15)
    run.steps(2.0, skipped=False)
    run.steps(2.0)  # as after every 2,000 steps, when the scale has grown
    run.skipped.check_end(tmp_path)
    run.steps(NAN, NAN)
    with pytest.raises(ValueError, match="last 3 steps"):
        run.skipped.check_end(tmp_path)
    run = Run(tmp_path, scale=2.0**15)
    run.steps(2.0)  # the only step of a continued run
    run.skipped.check_end(tmp_path)
    run.steps(2.0)
    with pytest.raises(ValueError, match="last 2 steps"):
        run.skipped.check_end(tmp_path)


def test_no_checkpoint_holds_a_bad_weight(tmp_path):
    check_weights([("a", paddle.ones([2])), ("none", None)], "", tmp_path)
    with pytest.raises(ValueError, match="weight b is not finite: checkpoint-3 "):
        check_weights([("b", paddle.full([2], NAN, "bfloat16"))], "checkpoint-3 is not written", tmp_path)


SHORT = (
    "--max_seq_length 32 --per_device_train_batch_size 2 --do_eval false --save_steps 2 --save_total_limit 1"
)
LONGER = "--resume_from_checkpoint --max_steps 40 --decay_steps 1000000 --warmup_steps 0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--fp16 --learning_rate 1e3", "10 steps .*checkpoint-"),
        ("--nonfinite skip --learning_rate 1e38", "(steps were skipped|the weight .* is not).*checkpoint-"),
        ("--max_grad_norm 0 --learning_rate 1e39", "the weight .* is not finite|the loss is"),
    ],
    ids=["fp16", "skip", "no norm"],
)
def test_a_run_that_cannot_recover_ends_and_keeps_its_checkpoints(run_python, tmp_path, flags, sentence):
    script, out = ROOT / "scripts/run_llama_npu.py", tmp_path / "out"
    words = [*run_inputs.words(run_inputs.inputs(tmp_path)), *SHORT.split(), "--output_dir", out]
    precision = [flag for flag in flags.split() if flag == "--fp16"]
    good = run_python(script, *words, *precision, "--max_steps", "4")
    assert good.returncode == 0, good.stderr
    done = run_python(script, *words, *flags.split(), *LONGER.split())
    assert done.returncode == 2 and re.search(sentence, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    stored = Stored(checkpoint.to_resume(True, out))
    assert all(paddle.isfinite(paddle.to_tensor(stored[name])).all() for name in stored)
    for line in (out / metrics.FILE).read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
