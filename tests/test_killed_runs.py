"""A rank of a run of the script is killed or stopped: the run ends with a sentence, and can go on."""

import os
import signal
import time

import pytest
from test_launch import SCRIPT, arguments, ranks_of  # noqa: F401  (a fixture)
from test_run_llama import losses

from llm_npu import checkpoint

pytestmark = pytest.mark.slow
STEPS = 8
PATIENCE = 30  # seconds: collectives notice after 5; the rest is for the end of Python on a busy machine


@pytest.fixture(scope="module")
def command(arguments):  # noqa: F811
    flags = (
        "--nproc 2 --tensor_parallel_degree 2 --disable_tqdm true --evaluation_strategy no --do_eval false"
    )
    steps = f"--max_steps {STEPS} --save_steps 2 --resume_from_checkpoint auto --async_save"
    return [SCRIPT, *arguments, *flags.split(), *steps.split()]


@pytest.fixture(scope="module")
def undisturbed(command, run_python, tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    done = run_python(*command, "--output_dir", out)
    assert done.returncode == 0, done.stderr
    return losses(out)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_run_that_lost_a_rank(command, undisturbed, start_python, run_python, tmp_path, rank, number):
    out = tmp_path / "out"
    process = start_python(*command, "--output_dir", out)
    for line in process.stdout:
        if line.startswith("step 5/"):
            break
    os.kill(ranks_of(process)[rank], number)
    hit = time.monotonic()
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - hit < PATIENCE
    assert process.returncode not in (0, 2), stderr
    assert f"rank {rank}" in stderr, stderr
    newest = checkpoint.to_resume("true", out)
    assert checkpoint.step_of(newest) in (2, 4)  # the one of step 4 may have been on its way
    done = run_python(*command, "--output_dir", out)
    assert done.returncode == 0, done.stderr
    assert losses(out) == undisturbed
    assert not list(out.glob(".checkpoint-*"))
