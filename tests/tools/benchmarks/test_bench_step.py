"""python -m benchmarks step runs with a tiny Llama, verifies, says what is missing; speed is not asserted."""

import pytest

from benchmarks import contest, report
from benchmarks.contenders import Processes
from benchmarks.step import LlamaSize, command

pytestmark = pytest.mark.slow

PROGRAM = ("-m", "benchmarks", "step")


@pytest.fixture(scope="module")
def first_run(run_python, tmp_path_factory):
    """The result with every contender, and the files that it wrote."""
    folder = tmp_path_factory.mktemp("bench_step")
    written = ["--json", folder / "new.jsonl"]
    done = run_python(*PROGRAM, "--quick", "--rounds", 1, "--threads", 1, *written)
    return done, folder


def test_every_contender_and_goal_is_printed(first_run):
    done, _ = first_run
    assert done.returncode == 0, done.stderr
    for name in command.CONTENDERS:
        assert name in done.stdout
    assert "torch is not installed" in done.stdout
    # Without torch these are left: three times Paddle, and the virtual device's overhead.
    assert [line.split()[:2] for line in done.stdout.splitlines()].count(["goal", "met"]) <= 2
    assert done.stdout.count("goal ") == 2


def test_our_step_is_verified_and_recorded(run_python, tmp_path):
    file = tmp_path / "new.jsonl"
    chosen = ("--dtype", "bfloat16", "--contenders", command.OURS, "--json", file)
    done = run_python(*PROGRAM, "--quick", "--rounds", 1, "--threads", 1, *chosen)
    assert done.returncode == 0, done.stderr
    (record,) = (record for record in report.read(str(file)) if record["kind"] == "time")
    assert record["tokens_per_second"] == pytest.approx(command.QUICK.tokens / record["median"])


def test_records_and_their_comparison(first_run, run_python):
    file = first_run[1] / "new.jsonl"
    records = report.read(str(file))
    times = [record for record in records if record["kind"] == "time"]
    assert len(times) == 4 + 2 + 1 + 2  # float32: Paddle, torch; bfloat16: Paddle, torch
    for record in times:
        if record["contender"].startswith("torch"):
            assert record["skipped"] == "torch is not installed"
            continue
        assert record["tokens_per_second"] == pytest.approx(command.QUICK.tokens / record["median"])
        assert record["page_faults"] >= 0
    chosen = ("--dtype", "bfloat16", "--contenders", command.OURS, "--compare", file)
    done = run_python(*PROGRAM, "--quick", "--rounds", 1, "--threads", 1, *chosen)
    assert done.returncode == 0, done.stderr
    assert "new / old" in done.stdout


def test_what_is_wrong_is_refused(run_python, tmp_path):
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("{}\n")
    done = run_python(*PROGRAM, "--quick", "--compare", wrong)
    assert done.returncode == 2 and "contains no times" in done.stderr
    done = run_python(*PROGRAM, "--contenders", "fused gpu")
    assert done.returncode == 2 and "'fused gpu' " in done.stderr


@pytest.mark.parametrize("other", [9.5, float("nan")])
def test_different_losses_are_refused(other):
    contest.agree("float32", {"fused npu": [9.0, 8.0], "paddle": [9.0, 8.0000001]})
    with pytest.raises(contest.Wrong, match=r"step 1: .* 8\.000000 with fused npu"):
        contest.agree("float32", {"fused npu": [9.0, 8.0], "paddle": [9.0, other]})


@pytest.mark.parametrize("dtype", command.GROUPS)
def test_training_learns_its_tokens(dtype):
    table = {command.OURS: command.step_contender(command.OURS, command.QUICK, dtype)}
    with Processes(table, 1, "off", "", table) as processes:
        losses = processes[command.OURS].ask("losses", steps=8)["ok"]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def test_flops_of_a_step():
    size = LlamaSize(hidden=8, layers=3, vocabulary=32, length=4, batch=2, heads=2, intermediate=16)
    linear = 3 * (4 * 8 * 8 + 3 * 8 * 16) + 8 * 32
    assert size.parameters == linear + 32 * 8 + 3 * 2 * 8 + 8
    # Norms multiply, too. Attention: two products, causal, of B S S H each in every layer.
    products = 3 * 2 * (2 * 4 * 4 * 8) * 2 // 2
    assert size.flops == 6 * 8 * (linear + 3 * 2 * 8 + 8) + 3 * products
