"""Errors meant for the user, which a run answers with one sentence; defects keep their traceback."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
import run_inputs
from places import ROOT

from llm_npu.core import errors, program
from llm_npu.training import checkpoint, out_of_memory


def test_errors_that_are_meant_for_the_user():
    def is_for_the_user(action):
        with pytest.raises((ValueError, OSError)) as error:
            action()
        return errors.is_for_the_user(error.value)

    def reshape():
        paddle.ones([2, 3]).reshape([5])

    assert is_for_the_user(lambda: checkpoint.verify("/nowhere"))
    assert is_for_the_user(lambda: Path("/nowhere").read_text())
    assert not is_for_the_user(reshape)
    assert is_for_the_user(errors.caused_by_the_user()(reshape))


def test_advice_for_memory_names_what_the_run_can_change():
    def arguments(**changed):
        usual = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 8, "recompute": False}
        return SimpleNamespace(**usual | changed)

    assert "--per_device_train_batch_size 4 " in out_of_memory.of_step(arguments())
    assert "--recompute" not in out_of_memory.of_step(arguments(recompute=True))
    assert "batch" not in out_of_memory.of_step(arguments(per_device_train_batch_size=1))
    assert "--per_device_eval_batch_size 8" in out_of_memory.of_evaluation(arguments())
    assert "train" not in out_of_memory.of_evaluation(arguments())


def test_programs_without_training_give_no_advice_about_it(capsys):
    def allocate(argv):
        np.ones(1 << 60, np.int8)

    assert program.run(allocate, []) == 2
    assert capsys.readouterr().err.startswith("error: Unable to allocate 1.00 EiB")

    def train(argv):
        with out_of_memory.advising(lambda: "Do this."):
            allocate(argv)

    assert program.run(train, []) == 2
    assert capsys.readouterr().err.rstrip().endswith("Do this.")


@pytest.mark.slow
def test_weights_that_do_not_fit(run_python, tmp_path):
    words = [*run_inputs.words(run_inputs.inputs(tmp_path)), "--max_seq_length", "32"]
    words += ["--output_dir", tmp_path / "out"]
    done = run_python(ROOT / "scripts/run_llama_npu.py", *words, VIRTUAL_NPU_MEMORY_GB="0.0003")
    assert done.returncode == 2
    last_line = done.stderr.splitlines()[-1]
    assert last_line.startswith("error: Out of memory") and "over more devices" in last_line
    assert "batch_size" not in last_line
