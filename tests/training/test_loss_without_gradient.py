"""A loss that depends on no trained weight ends the run."""

import pytest
import run_inputs

PROGRAM = """
import virtual_npu

virtual_npu.activate()

import sys

from llm_npu.commands import train
from llm_npu.training.trainer import PretrainTrainer

batch_loss = PretrainTrainer.batch_loss


def detached(self, model, inputs):
    loss, outputs = batch_loss(self, model, inputs)
    return loss.detach(), outputs


PretrainTrainer.batch_loss = detached
sys.exit(train.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_loss_without_gradient_ends_the_run(run_python, tmp_path):
    inputs = run_inputs.inputs(tmp_path)
    words = run_inputs.words({**inputs, "output_dir": tmp_path / "out", "max_steps": 2, "max_seq_length": 32})
    done = run_python("-c", PROGRAM, *words)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "loss has no gradient" in done.stderr
    assert not list((tmp_path / "out").glob("checkpoint-*"))
