"""Sequences of 128K tokens on 4 ranks: three steps of a very small Llama, by each way to split them."""

import functools
from pathlib import Path

import pytest
import ranks
import run_inputs
from roundings import ADAM_EPSILON, assert_trained_alike
from run_inputs import losses

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("measured_run.py")
LENGTH, STEPS = 128 << 10, 3
SOURCES = ("_pydecimal.py", "turtle.py", "tarfile.py", "typing.py")  # a little more than one sequence
MEMORY = 6 << 30  # bytes, of all ranks together; the scores of one head would take 64 GiB
METHODS = {
    "Ulysses": "--sep_parallel_degree 4",
    "ring": "--context_parallel_degree 4",
    "hybrid": "--context_parallel_degree 2 --sep_parallel_degree 2",
}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """Of a Llama with one layer and a head per rank, and of the same sequence in every step."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    positions = {"num_key_value_heads": 4, "max_position_embeddings": LENGTH}
    fields = {
        **run_inputs.inputs(tmp_path_factory.mktemp("inputs"), SOURCES, **sizes, **positions),
        "split": "100,0,0",
        "max_seq_length": LENGTH,
        "max_steps": STEPS,
        "learning_rate": "5e-3",
        "warmup_steps": 0,
        "adam_epsilon": ADAM_EPSILON,
        "per_device_train_batch_size": 1,
        "do_eval": "false",
        "evaluation_strategy": "no",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": "true",
    }
    return run_inputs.words(fields)


@pytest.fixture(scope="module")
def trained(arguments, tmp_path_factory):
    """A function: the losses of a method, and the peak memory of its ranks together, in bytes."""

    @functools.cache
    def run(method: str, bf16: bool) -> tuple[list[float], int]:
        folder = tmp_path_factory.mktemp("runs")
        flags = f"{METHODS[method]} --bf16 {str(bf16).lower()}"
        words = [*arguments, *flags.split(), "--output_dir", folder / "out"]
        reports = ranks.run(PROGRAM, 4, folder, *words, timeout=2 * ranks.TIMEOUT)
        return list(losses(folder / "out")[0].values()), sum(report["memory"] for report in reports)

    return run


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("method", METHODS)
def test_it_trains_within_the_memory(method, bf16, trained):
    trained_losses, memory = trained(method, bf16)
    assert len(trained_losses) == STEPS and trained_losses[-1] < trained_losses[0]
    assert memory < MEMORY


@pytest.mark.parametrize("method", ["ring", "hybrid"])
def test_losses_do_not_depend_on_the_method(method, trained):
    # 16 roundings of float32, as of resumed runs (test_resumed_runs.py)
    assert trained(method, False)[0] == pytest.approx(trained("Ulysses", False)[0], rel=1e-6)


@pytest.mark.parametrize("method", ["ring", "hybrid"])
def test_losses_in_bfloat16_do_not_depend_on_the_method(method, trained):
    # The noise floor is the distance to float32: the scores of a layer that is not fused do not fit.
    losses_of = {bf16: trained("Ulysses", bf16)[0] for bf16 in (False, True)}
    assert_trained_alike("loss", trained(method, True)[0], losses_of[True], [losses_of[False]])
