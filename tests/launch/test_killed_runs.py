"""A rank of a run of the script is killed or stopped: the run ends with a sentence, and can go on."""

import os
import select
import signal
from pathlib import Path

import pytest
import ranks
from run_inputs import losses
from test_launch import SCRIPT, arguments, ranks_of  # noqa: F401  (a fixture)

from llm_npu.training import checkpoint

pytestmark = pytest.mark.slow
# After the fifth a rank is killed. The others are for the time until that has happened, on a busy machine.
STEPS, SAVED = 40, 2


@pytest.fixture(scope="module")
def command(arguments):  # noqa: F811
    flags = (
        "--nproc 2 --tensor_parallel_degree 2 --disable_tqdm true --evaluation_strategy no --do_eval false"
    )
    steps = f"--max_steps {STEPS} --save_steps {SAVED} --resume_from_checkpoint auto --async_save"
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
    own = ranks_of(process)
    os.kill(own[rank], number)
    # That its waits are bounded tests/launch/test_launch.py sees; how long the rest takes depends on the
    # machine.
    _, stderr = process.communicate(timeout=ranks.TIMEOUT)
    assert not any(Path(f"/proc/{pid}").exists() for pid in own)
    assert process.returncode not in (0, 2), stderr
    assert f"rank {rank}" in stderr, stderr
    newest = checkpoint.step_of(checkpoint.to_resume(True, out))
    last = max(losses(out)[0])
    assert newest % SAVED == 0 and 0 <= last - newest <= 2 * SAVED  # one more may have been on its way
    done = run_python(*command, "--output_dir", out)
    assert done.returncode == 0, done.stderr
    assert losses(out) == undisturbed
    assert not list(out.glob(".checkpoint-*"))


@pytest.mark.parametrize("flag", ["--sep_parallel_degree", "--context_parallel_degree"])
def test_a_run_of_split_sequences_that_lost_a_rank(flag, command, start_python, tmp_path):
    split = [flag if word == "--tensor_parallel_degree" else word for word in command]
    process = start_python(*split, "--output_dir", tmp_path / "out")
    for line in process.stdout:
        if line.startswith("step 5/"):
            break
    own = ranks_of(process)
    os.kill(own[1], signal.SIGKILL)
    _, stderr = process.communicate(timeout=ranks.TIMEOUT)
    assert not any(Path(f"/proc/{pid}").exists() for pid in own)
    assert process.returncode not in (0, 2) and "rank 1" in stderr, stderr


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_it_starts_again_by_itself(command, undisturbed, start_python, tmp_path, number):
    out = tmp_path / "out"
    process = start_python(*command, "--max_restarts", "1", "--output_dir", out)
    for line in process.stdout:
        if line.startswith("step 5/"):
            break
    os.kill(ranks_of(process)[1], number)
    _, stderr = process.communicate(timeout=ranks.TIMEOUT)
    assert process.returncode == 0, stderr
    assert stderr.count("restart  1 of 1") == 1
    assert losses(out) == undisturbed
    assert not list(out.glob(".checkpoint-*"))


def test_ranks_do_not_outlive_their_launcher(command, start_python, tmp_path):
    out = tmp_path / "out"
    process = start_python(*command, "--output_dir", out, "--max_steps", "100000")
    for line in process.stdout:
        if line.startswith("step 3/"):
            break
    descriptors = [os.pidfd_open(pid) for pid in ranks_of(process)]
    process.kill()
    for descriptor in descriptors:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(ranks.TIMEOUT * 1000)  # milliseconds; it has ended
        os.close(descriptor)
    assert checkpoint.step_of(checkpoint.to_resume(True, out)) >= 3
