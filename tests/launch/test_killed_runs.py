"""A rank of a run of the script is killed or stopped: the run ends with a sentence, and can go on."""

import os
import select
import signal
from pathlib import Path

import pytest
import ranks
import run_inputs
from roundings import ADAM_EPSILON
from run_inputs import losses
from test_launch import SCRIPT, arguments, ranks_of  # noqa: F401  (a fixture)

from llm_npu.training import checkpoint

pytestmark = pytest.mark.slow
# After the fifth a rank is killed. The others are for the time until that has happened, on a busy machine.
STEPS, SAVED = 40, 2
TENSOR, SHARDED = "--tensor_parallel_degree 2", "--sharding stage1 --per_device_train_batch_size 1"
ULYSSES, RING = "--sep_parallel_degree 2", "--context_parallel_degree 2"
OFFLOAD = "--offload_optimizer --recompute --offload_activations"
METHODS = {  # {name: (flags of the run that loses a rank, flags of the run that continues)}
    "Ulysses": (ULYSSES, SHARDED),
    "ring": (RING, ULYSSES),
    "ring of Ulysses": (f"--nproc 4 {RING} {ULYSSES}", RING),
    "ring, offload": (f"{RING} {OFFLOAD}", f"{TENSOR} --offload_optimizer"),
    "offload": (f"{SHARDED} {OFFLOAD}", TENSOR),
}
OF_PADDLENLP = ("Ulysses", "ring", "ring of Ulysses", "ring, offload")
OF_A_SAMPLE = "--expert_parallel_degree 2"  # the ranks share every sample
EXPERTS = f"{OF_A_SAMPLE} --per_device_train_batch_size 1"
OF_EXPERTS = {
    "data parallel": (EXPERTS, SHARDED),
    "sharding stage 1": (f"{EXPERTS} --sharding stage1", "--nproc 1"),
    "Ulysses": (f"{OF_A_SAMPLE} {ULYSSES}", f"{EXPERTS} --sharding stage1"),
    "ring": (f"{OF_A_SAMPLE} {RING}", f"{OF_A_SAMPLE} {ULYSSES}"),
    "tensor parallel with sequence parallel": (f"{OF_A_SAMPLE} {TENSOR} --sequence_parallel true", RING),
}
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.fixture(scope="module")
def two_ranks(arguments):  # noqa: F811
    flags = "--nproc 2 --disable_tqdm true --evaluation_strategy no --do_eval false"
    steps = f"--max_steps {STEPS} --save_steps {SAVED} --resume_from_checkpoint auto --async_save"
    return [SCRIPT, *arguments, *flags.split(), *steps.split()]


@pytest.fixture(scope="module")
def command(two_ranks):
    return [*two_ranks, *TENSOR.split()]


@pytest.fixture(scope="module")
def in_float32(two_ranks):
    return [*two_ranks, "--bf16", "false", "--adam_epsilon", ADAM_EPSILON]


@pytest.fixture(scope="module")
def train(run_python):
    """A function: the losses of a run that ends by itself."""

    def run(out, *words):
        done = run_python(*words, "--output_dir", out)
        assert done.returncode == 0, done.stderr
        return losses(out)

    return run


@pytest.fixture(scope="module")
def undisturbed(command, train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("undisturbed"), *command)


@pytest.fixture(scope="module")
def undisturbed_in_float32(in_float32, train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("undisturbed"), *in_float32, *TENSOR.split())


@pytest.fixture(scope="module")
def mixtral(in_float32, tmp_path_factory):
    model = run_inputs.inputs(tmp_path_factory.mktemp("mixtral"), **MIXTRAL)["model_name_or_path"]
    return [*in_float32, "--model_name_or_path", model]


@pytest.fixture(scope="module")
def undisturbed_mixtral(mixtral, train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("undisturbed"), *mixtral, *SHARDED.split())


def lose(process, rank: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a rank after the fifth step, and wait until the run has ended with a sentence.

    That its waits are bounded tests/launch/test_launch.py sees; how long the rest takes depends on the
    machine.
    """
    for line in process.stdout:
        if line.startswith("step 5/"):
            break
    own = ranks_of(process)
    os.kill(own[rank], number)
    _, stderr = process.communicate(timeout=ranks.TIMEOUT)
    assert not any(Path(f"/proc/{pid}").exists() for pid in own)
    assert process.returncode not in (0, 2) and f"rank {rank}" in stderr, stderr


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_run_that_lost_a_rank(command, undisturbed, start_python, train, tmp_path, rank, number):
    out = tmp_path / "out"
    lose(start_python(*command, "--output_dir", out), rank, number)
    newest = checkpoint.step_of(checkpoint.to_resume(True, out))
    last = max(losses(out)[0])
    assert newest % SAVED == 0 and 0 <= last - newest <= 2 * SAVED  # one more may have been on its way
    assert train(out, *command) == undisturbed
    assert not list(out.glob(".checkpoint-*"))


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=pytest.mark.paddlenlp) if name in OF_PADDLENLP else name for name in METHODS],
)
def test_another_mesh_continues(method, in_float32, undisturbed_in_float32, start_python, train, tmp_path):
    continued = lose_and_continue(METHODS[method], in_float32, start_python, train, tmp_path / "out")
    assert continued == pytest.approx(undisturbed_in_float32[0], rel=1e-6)


def lose_and_continue(flags: tuple[str, str], command, start_python, train, out: Path) -> dict[int, float]:
    """The losses of a run that loses a rank, with the first flags, and continues with the others."""
    lost, again = (words.split() for words in flags)
    lose(start_python(*command, *lost, "--output_dir", out), 1)
    assert checkpoint.step_of(checkpoint.to_resume(True, out)) >= SAVED
    return train(out, *command, *again)[0]


@pytest.mark.paddlenlp
@pytest.mark.parametrize("method", OF_EXPERTS)
def test_experts_continue_on_another_mesh(
    method, mixtral, undisturbed_mixtral, start_python, train, tmp_path
):
    continued = lose_and_continue(OF_EXPERTS[method], mixtral, start_python, train, tmp_path / "out")
    assert continued == pytest.approx(undisturbed_mixtral[0], rel=1e-6)


@pytest.mark.paddlenlp
@pytest.mark.parametrize("flags", [ULYSSES, RING, EXPERTS])
def test_a_stopped_rank_is_named(flags, mixtral, in_float32, start_python, tmp_path):
    command = mixtral if flags == EXPERTS else in_float32
    lose(start_python(*command, *flags.split(), "--output_dir", tmp_path / "out"), 1, signal.SIGSTOP)


@pytest.mark.paddlenlp
def test_a_pipeline_in_v_shape_that_lost_a_rank(two_ranks, start_python, tmp_path):
    in_v = "--pipeline_parallel_degree 2 --pipeline_schedule dualpipev --num_hidden_layers 4"
    micro_batches = "--per_device_train_batch_size 1 --gradient_accumulation_steps 4"
    flags = f"{in_v} {micro_batches}".split()
    lose(start_python(*two_ranks, *flags, "--output_dir", tmp_path / "out"), 1)


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
